"""Faults of what lies on a disk: checkpoints, their pieces, random states; and of texts."""

from tests.mutants.fault import Fault

FAULTS = {
    "checkpoints: files": [
        Fault(
            "a file gets its name before its bytes are on the disk",
            "checkpoint/disk.py",
            "            os.fsync(file)\n        finally:\n            os.close(file)\n",
            "        finally:\n            os.close(file)\n",
            "checkpoint/test_disk.py::test_the_order",
        ),
        Fault(
            "a new file is written over the old one",
            "checkpoint/disk.py",
            "partial = path.with_name(path.name + PARTIAL)",
            "partial = path",
            "checkpoint/test_disk.py::test_a_full_disk_leaves_what_was_there",
        ),
        Fault(
            "what the disk did not take of a write is lost",
            "checkpoint/disk.py",
            "    while view:\n        view = view[os.write(file, view) :]\n",
            "    os.write(file, view)\n",
            "checkpoint/test_disk.py::test_short_writes",
        ),
        Fault(
            "a file counts as whole if its size is right",
            "checkpoint/manifest.py",
            "if disk.sum_of(folder / file) != wanted:",
            "if disk.sum_of(folder / file).nbytes != wanted.nbytes:",
            "checkpoint/test_manifest.py::test_files_are_verified",
        ),
        Fault(
            "the manifest's own checksum is not compared",
            "checkpoint/manifest.py",
            'if body.pop("sha256", None) != _digest(body):',
            'if body.pop("sha256", None) is None:',
            "checkpoint/test_manifest.py::test_a_changed_byte_is_refused",
        ),
        Fault(
            "the newest is the one of the highest step",
            "checkpoint/manifest.py",
            "return sorted(found, key=serial)",
            "return sorted(found, key=lambda path: int(FOLDER.fullmatch(path.name)[2]))",
            "checkpoint/test_checkpoints.py::test_going_back_to_an_earlier_step",
        ),
        Fault(
            "one more than the last k stays",
            "checkpoint/checkpoints.py",
            "path in good[-self.keep :]",
            "path in good[-self.keep - 1 :]",
            "checkpoint/test_checkpoints.py::test_the_last_k[True-world-2]",
        ),
        Fault(
            "a damaged one takes the place of a good one among the last k",
            "checkpoint/checkpoints.py",
            "good = [path for path in manifest.finished(self.folder) if path not in self.refused]",
            "good = manifest.finished(self.folder)",
            "checkpoint/test_checkpoints.py::test_a_refused_one_does_not_count",
        ),
        Fault(
            "a save beside the program writes what training has changed",
            "checkpoint/checkpoints.py",
            'x.to("cpu", copy=True)',
            'x.to("cpu")',
            "checkpoint/test_checkpoints.py::test_a_snapshot",
        ),
        Fault(
            "each rank judges a checkpoint by its own files",
            "checkpoint/checkpoints.py",
            "complaints = [why for why in told(self.comm, complaint) if why]",
            "complaints = [complaint] if complaint else []",
            "checkpoint/test_checkpoints.py::test_one_that_is_missing_on_a_rank",
        ),
    ],
    "checkpoints: resharding": [
        Fault(
            "a run that begins within a row begins with the whole row",
            "checkpoint/boxes.py",
            "low, high = -(-first // row), end // row",
            "low, high = first // row, end // row",
            "checkpoint/test_boxes.py::test_runs",
        ),
        Fault(
            "boxes side by side overlap in an empty one",
            "checkpoint/boxes.py",
            "if all(n > 0 for n in size) else None",
            "if all(n >= 0 for n in size) else None",
            "checkpoint/test_boxes.py::test_two_boxes",
        ),
        Fault(
            "padding is saved, too",
            "checkpoint/piece.py",
            "max(0, min(n, end - at)) for",
            "n for",
            "checkpoint/test_piece.py::test_padding_is_cut_off",
        ),
        Fault(
            "the first rank writes all that replicas have in common",
            "checkpoint/shares.py",
            "found[one] = min(holders[one], key=lambda rank: (loads[rank], rank))",
            "found[one] = holders[one][0]",
            "checkpoint/test_shares.py::test_replicas_share_the_work",
        ),
        Fault(
            "a hole between two pieces is not found",
            "checkpoint/shares.py",
            "        if holes:\n",
            "        if holes and len(there) == 1:\n",
            "checkpoint/test_shares.py::test_what_does_not_fit_together",
        ),
        Fault(
            "of two matrices in one parameter the second goes where the first belongs",
            "checkpoint/places.py",
            "at(begin + bounds(sizes)[rank][0])",
            "at(bounds(sizes)[rank][0])",
            "checkpoint/test_training.py::test_through_all_grids_and_back",
        ),
        Fault(
            "a part of a tensor is read in runs that begin one dimension too early",
            "checkpoint/format.py",
            "cut = max(",
            "cut = min(",
            "checkpoint/test_format.py::test_boxes_and_only_their_bytes",
        ),
    ],
    "random state": [
        Fault(
            "NumPy's generator is saved, and not set",
            "checkpoint/random.py",
            "    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))\n",
            "",
            "checkpoint/test_random.py::test_they_go_on",
        ),
        Fault(
            "the normal number that NumPy has in hand is lost",
            "checkpoint/random.py",
            "np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))",
            "np.random.set_state((kind, np.array(keys, dtype=np.uint32), rest[0]))",
            "checkpoint/test_random.py::test_they_go_on",
        ),
        Fault(
            "of several GPUs' generators the first is taken",
            "checkpoint/random.py",
            "return saved[device], None",
            "return saved[0], None",
            "checkpoint/test_random.py::test_what_was_saved_of_all_gpus",
        ),
        Fault(
            "where the GPU's generator cannot be set, none is",
            "checkpoint/random.py",
            '    found, complaint = _own(state["cuda"])\n',
            (
                '    found, complaint = _own(state["cuda"])\n'
                "    if complaint:\n"
                "        return warnings.warn(complaint, stacklevel=2)\n"
            ),
            "checkpoint/test_random.py::test_a_gpu_run_goes_on_without_one",
        ),
    ],
    "text": [
        Fault(
            "documents are not ended",
            "text.py",
            "for t in (*tokenizer.encode(text), tokenizer.end)]",
            "for t in tokenizer.encode(text)]",
            "test_text.py::test_packed",
        ),
        Fault(
            "every epoch has the order of the first",
            "text.py",
            "if self._places is None or self._places[0] != epoch:",
            "if self._places is None:",
            "test_text.py::test_an_epoch_has_each_piece_once",
        ),
        Fault(
            "the last tokens of the text are never seen",
            "text.py",
            "torch.randint(room + 1, (), generator=random)",
            "torch.randint(max(room, 1), (), generator=random)",
            "test_text.py::test_an_epoch_has_each_piece_once",
        ),
        Fault(
            "the last piece of a text may lack its next token",
            "text.py",
            "self.epoch = (len(tokens) - 1) // max(1, length)",
            "self.epoch = len(tokens) // max(1, length)",
            "test_text.py::test_a_text_that_is_too_short",
        ),
        Fault(
            "bytes are read on behind the end of a document",
            "text.py",
            "bytes(t for t in _document(tokens, self.end) if t < 256)",
            "bytes(t for t in tokens if t < 256)",
            "test_text.py::test_every_text_comes_back",
        ),
        Fault(
            "a text that spells the end has an end in it",
            "text.py",
            "self._pairs.encode_special_tokens = True",
            "self._pairs.encode_special_tokens = False",
            "test_text.py::test_every_text_comes_back",
        ),
    ],
}
