# What every script needs: a Python that is new enough, a virtual environment, Java. To be sourced.
# Says in one sentence what is missing and which command brings it; as root on Debian it runs it.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$top/.venv"
python="$venv/bin/python"

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 1
}

can_install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null
}

# install PACKAGE WHAT: with apt where that is possible, else the command to do it by hand.
install() {
    if ! can_install; then
        fail "$2 is missing; on Debian or Ubuntu: sudo apt-get install $1"
    fi
    printf 'installing %s (%s is missing)\n' "$1" "$2" >&2
    apt-get update -qq >&2 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null 2>&1 ||
        fail "apt-get could not install $1"
}

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 to 3.13 is needed: put one on the path, or name it in PYTHON"
}

# use_spark VERSION: a virtual environment of its own, with that version of Spark.
use_spark() {
    spark_version=$1
    venv="$top/.venv-spark-$1"
    python="$venv/bin/python"
    export PYSPARK_PYTHON="$python" FLUMENG_CACHE="$venv/cache"
}

# need_venv [EXTRA]: .venv with flumeng and its dependencies, brought up to date when they change;
# with an extra the distributions in packages/ too.
need_venv() {
    local wanted stamp="$venv/installed${1:+-$1}"
    wanted=$(cat "$top/setup.cfg" "$top/pyproject.toml" "$top"/packages/*/setup.cfg | cksum)
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x "$python" ]; then
        local base
        base=$(find_python)
        if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
            install python3-venv "Python's venv module"
        fi
        "$base" -m venv "$venv" || fail "cannot make $venv"
    fi
    printf 'installing flumeng and what it needs into %s\n' "$(basename "$venv")" >&2
    # To compile all twelve thousand modules takes half a minute; each is when it is first imported.
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
        -e "$top${1:+[$1]}" ${1:+-e "$top/packages/flumeng-flume" -e "$top/packages/flumeng-testkit"} \
        ${spark_version:+"pyspark==$spark_version"} >&2 ||
        fail "pip could not install the dependencies"
    printf '%s\n' "$wanted" >"$stamp"
    printf '%s\n' "$wanted" >"$venv/installed"
}

java_version() {
    local java=java
    [ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

need_java() {
    local version
    version=$(java_version || true)
    if [ -z "$version" ]; then
        install openjdk-17-jre-headless "Java 17 or newer"
    elif [ "$version" -lt 17 ]; then
        fail "Java $version is too old, 17 or newer is needed: set JAVA_HOME to a newer one"
    fi
}

# need_class_archive: what makes every later start of Spark fast; made once for this Java.
need_class_archive() {
    if [ -z "$(ls "$FLUMENG_CACHE" 2>/dev/null)" ]; then
        printf 'preparing Spark for fast starts (once, about half a minute)\n' >&2
    fi
    "$python" -m flumeng.agent.collector.class_archive "$FLUMENG_CACHE" >&2
}

# want PACKAGE COMMAND: nice to have, so it is installed only where that is possible.
want() {
    if ! command -v "$2" >/dev/null && can_install; then
        install "$1" "$2"
    fi
}

# Else each process compiles all of flumeng at its start, and each run of the tests all of them.
unset PYTHONDONTWRITEBYTECODE
export PYSPARK_PYTHON="$python"
export FLUMENG_CACHE="$venv/cache"
