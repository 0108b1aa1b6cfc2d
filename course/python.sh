# Prints the name of the Python that installs the course, or says what is missing and how to get it.
#
#     sh course/python.sh VENV GOAL [PYTHON]
#
# It is that of the environment VENV where there is one, or PYTHON, or else the first of some names that fits: its version
# is one of those that pyproject.toml names, and it can make environments. GOAL is what was asked of make. This is a shell
# script because there may be no Python that could run one.

venv=$1
goal=$2
needs="minidist needs Python 3.11, 3.12 or 3.13"
names="python3 python3.13 python3.12 python3.11"

say() { printf '%s\n' "$@" >&2; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

# Debian and Ubuntu keep ensurepip in a package of its own, without which venv leaves half an environment behind.
makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

cannot_make_them() {
    say "$1 is $("$1" --version 2>&1), which is suitable, but its modules venv and ensurepip are missing." \
        "On Debian and Ubuntu: sudo apt install ${1##*/}-venv" \
        "Then again: make $goal"
}

case $(uname -s) in
MINGW* | MSYS* | CYGWIN*)
    say "On Windows the course runs inside WSL, the Linux inside Windows: open PowerShell as administrator, type" \
        "wsl --install, and install the course there. Ranks are processes that hand open files to each other, and" \
        "graders end what takes too long with SIGALRM; Windows itself has neither."
    exit 1
    ;;
esac

if [ -L "$venv/bin/python" ] && [ ! -e "$venv/bin/python" ]; then
    say "The Python that made $venv is gone, and without it $venv is of no use. Remove it: rm -r $venv" "Then again: make $goal"
    exit 1
fi

if [ -x "$venv/bin/python" ] && [ ! -e "$venv/.unfinished" ]; then
    if ! fits "$venv/bin/python"; then
        say "$needs, and $venv has $("$venv/bin/python" --version 2>&1). Remove it: rm -r $venv"
        exit 1
    fi
    echo "$venv/bin/python"
    exit
fi

if [ -n "$3" ]; then
    if ! "$3" --version >/dev/null 2>&1; then
        say "$needs, and $3 is not there. Name another: make $goal PYTHON=python3.12"
        exit 1
    elif ! fits "$3"; then
        say "$needs, and $3 is $("$3" --version 2>&1). Name another: make $goal PYTHON=python3.12"
        exit 1
    elif ! makes_environments "$3"; then
        cannot_make_them "$3"
        exit 1
    fi
    echo "$3"
    exit
fi

found=
halves=
for name in $names; do
    # A shim of pyenv is there, and fails, where its version is not chosen.
    version=$("$name" --version 2>&1) || continue
    if ! fits "$name"; then
        found="${found:+$found, }$name ($version)"
    elif makes_environments "$name"; then
        echo "$name"
        exit
    else
        halves=${halves:-$name}
    fi
done

if [ -n "$halves" ]; then
    cannot_make_them "$halves"
    exit 1
fi
say "$needs. Found: ${found:-none of $names}." \
    "" \
    "    Debian 12, Ubuntu 24.04 and newer    sudo apt install python3 python3-venv" \
    "    macOS with Homebrew                  brew install python@3.13" \
    "    conda                                conda create -n minidist python=3.13 && conda activate minidist" \
    "    uv                                   uv python install 3.13 && make $goal PYTHON=\"\$(uv python find 3.13)\"" \
    "" \
    "Then again: make $goal. To name one yourself: make $goal PYTHON=/path/to/python"
exit 1
