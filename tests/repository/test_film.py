"""The film of the ring is that of a run, its numbers are the trace's, and all of it can be read, moving or not."""

import re
from xml.etree import ElementTree

import pytest
import torch

from course import film
from minidist import World
from minidist.collectives import all_reduce_
from minidist.study import picture
from tests.repository.files import ROOT
from tests.repository.test_figures import SVG, WIDEST, faults

STEPS = 2 * (film.RANKS - 1)


@pytest.fixture(scope="module")
def run():
    return film.record()


@pytest.fixture(scope="module")
def text(run):
    return film.svg(run)


def tree(text):
    return ElementTree.fromstring(text)


def end(text):
    """The drawing as it stands at the end, and what is not to be seen then."""
    root = tree(text)
    hidden = []
    for parent in list(root.iter()):
        for element in list(parent):
            if element.get("opacity") == "0":
                parent.remove(element)
                hidden.append(element)
    return root, hidden


def said(root):
    return [element.text for element in root.iter(SVG + "text")]


def keyframes(text, name):
    """The seconds, and the declarations, of an animation."""
    [body] = re.findall(rf"@keyframes {name}{{(.*)}}\n", text)
    frames = re.findall(r"([\d.]+)%{([^}]*)}", body)
    return [(float(share) / 100 * film.LOOP, style) for share, style in frames]


# ------------------------------------------------------------
# It is what the run gives.


def test_what_is_there_is_what_the_run_gives(text):
    assert (ROOT / film.PICTURE).read_text(encoding="utf-8") == text, "make build"


def test_a_stale_film_is_found(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(film, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    assert film.main(["--check"]) == 1
    assert film.main([]) == 0
    assert film.main(["--check"]) == 0
    path = tmp_path / film.PICTURE
    path.write_text(text.replace("24 messages", "25 messages"), encoding="utf-8")
    assert film.main(["--check"]) == 1
    assert "make build" in capsys.readouterr().err
    assert film.main(["--chekc"]) == 2


def test_its_numbers_are_those_of_a_run_that_nobody_watches(text):
    def plain(comm):
        all_reduce_(comm, torch.ones(film.NUMBERS))

    results = World(film.RANKS).run(plain)
    trace = results.trace
    words = said(end(text)[0])
    ends = sorted({message.arrived for message in trace})
    assert len(ends) == STEPS
    for step, second in enumerate(ends, 1):
        before = [message for message in trace if message.arrived <= second]
        sent = sum(message.nbytes for message in before if message.src == 0)
        row = words.index(f"step {step}")
        assert words[row + 1 : row + 3] == [str(len(before)), picture.measure(sent, "B")]
    formula = picture.measure(trace.bytes_sent(rank=0), "B")
    assert f"2(n−1)/n · N = {formula}" in words
    assert trace.bytes_sent(rank=0) == STEPS * 4 * film.NUMBERS // film.RANKS
    assert (
        f"Every rank has every sum, after {len(trace)} messages in 150 µs of the virtual clock."
        in words
    )
    assert picture.measure(results.time, "s") == "150 µs"


def test_another_run_has_other_numbers(text):
    other = film.svg(film.record(2 * film.NUMBERS))
    assert "2(n−1)/n · N = 6 MB" in said(tree(text))
    assert {"2(n−1)/n · N = 12 MB", "for n = 4, N = 8 MB", "270 µs"} <= set(said(tree(other)))


def test_what_is_no_ring_all_reduce_is_not_drawn(run):
    lost = run._replace(flights=run.flights[:-1])
    with pytest.raises(
        ValueError,
        match=r"rank 3 sent 5 messages and 5,000,000 bytes; a ring sends 6 and 6,000,000",
    ):
        film.svg(lost)
    unfinished = [steps[:-1] for steps in run.held]
    with pytest.raises(ValueError, match="rank 0 does not have every sum"):
        film.svg(run._replace(held=unfinished))
    with pytest.raises(ValueError, match="20 is no sum"):
        film.contributors(torch.tensor([20.0, 20.0]))
    with pytest.raises(ValueError, match="2 different numbers"):
        film.contributors(torch.tensor([1.0, 10.0]))
    assert film.contributors(torch.tensor([1010.0])) == {1, 3}


# ------------------------------------------------------------
# What moves.


def test_each_message_goes_from_its_sender_to_its_receiver_while_it_is_under_way(run, text):
    moving = [e for e in end(text)[1] if e.tag == SVG + "g" and e.find(SVG + "use") is not None]
    assert len(moving) == len(run.flights)
    for flight, element in zip(run.flights, moving, strict=True):
        use = element.find(SVG + "use")
        assert use.get("href") == "#s" + "".join(map(str, sorted(flight.inside)))
        frames = keyframes(text, element.get("class"))
        seen = [(second, style) for second, style in frames if "opacity:1" in style]
        stretched = film.PLAY / run.time
        assert seen[0][0] == pytest.approx(film.LEAD + stretched * flight.start, abs=0.02)
        assert seen[-1][0] == pytest.approx(film.LEAD + stretched * flight.arrived, abs=0.02)
        right, down = map(float, re.search(r"translate\((.*)px,(.*)px\)", seen[-1][1]).groups())
        place = (float(use.get("x")) + right, float(use.get("y")) + down)
        assert place == pytest.approx(film.corner(flight.dst, flight.chunk), abs=0.01)
        assert film.CHUNKS[flight.chunk] in said(element)


def test_every_animation_is_defined_and_goes_once_around(text):
    used = {e.get("class") for e in tree(text).iter() if e.get("class")}
    defined = set(re.findall(r"@keyframes (\w+)", text))
    assert used == defined == set(re.findall(r"\.(\w+){animation-name:\1}", text))
    for name in used:
        seconds = [second for second, _ in keyframes(text, name)]
        assert seconds == sorted(seconds) and (seconds[0], seconds[-1]) == (0, film.LOOP)


# ------------------------------------------------------------
# What is to be seen.


def test_it_is_small_and_has_no_script(text):
    assert len(text.encode()) < 60_000
    assert not re.search(r"<script|<image|<foreignObject|@import|url\((?!#)|\son\w+=", text)


def readable(root):
    ElementTree.register_namespace("", SVG.strip("{}"))
    allowed = (f"and at most {WIDEST} are allowed", "a style in a drawing")
    found = faults(ElementTree.tostring(root, encoding="unicode"))
    return [fault for fault in found if not fault.endswith(allowed)]


def test_its_end_and_each_of_its_sentences_can_be_read(text):
    root, hidden = end(text)
    assert readable(root) == []
    [last] = [e for e in root.iter(SVG + "text") if e.text.startswith("Every rank has every sum")]
    sentences = [e for e in hidden if e.tag == SVG + "text"]
    assert len(sentences) == STEPS + 1
    assert sentences[0].text.startswith("Each rank has four chunks of 1 MB")
    for number, sentence in enumerate(sentences[1:], 1):
        label = "reduce-scatter" if number <= STEPS // 2 else "all-gather"
        assert sentence.text.startswith(f"Step {number} of {STEPS}, {label}: ")
    for sentence in sentences:
        last.text = sentence.text
        assert readable(root) == []
    last.text = 2 * last.text
    assert any("leaves the card" in fault for fault in readable(root))


def test_words_are_large_enough_for_a_phone_and_stand_out(text):
    root = tree(text)
    sizes = {float(e.get("font-size", film.LETTERS)) for e in root.iter(SVG + "text")}
    assert min(sizes) * 400 / film.WIDTH > 8.8
    full = [picture.mix(picture.hue(rank), 0.75) for rank in range(film.RANKS)]
    pale = [picture.mix(hue, 0.2) for hue in (picture.BLUE, picture.GREEN)]
    assert {e.get("fill") for e in root.iter(SVG + "text")} == {None, picture.MUTED}
    for ground in (*full, *pale, picture.FAINT, picture.CARD):
        assert picture.contrast(picture.INK, ground) > 4.5
    assert picture.contrast(picture.MUTED, picture.CARD) > 4.5
