#!/bin/sh
# As root, installs missing system packages; otherwise prints the command that installs them.
# A missing required package stops the set-up. A missing optional package costs a warning or, with the argument `tests`, the
# tests that need the package.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

missing=""
need() { have "$1" || missing="$missing $2"; }
need git git
need gcc gcc
need make make
need ccache ccache
need sysbench sysbench
need vmstat procps
need taskset util-linux
need objcopy binutils
python3 -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
if ! perf --version >/dev/null 2>&1; then
    # Debian ships perf as linux-perf, Ubuntu inside the tools of each kernel.
    . /etc/os-release
    [ "${ID:-}" = ubuntu ] && missing="$missing linux-tools-generic" || missing="$missing linux-perf"
fi

optional=""
want() { have "$1" || optional="$optional $2"; }
want iostat sysstat
if [ "${1:-}" = tests ]; then
    [ -x /usr/sbin/sshd ] || optional="$optional openssh-server"
    for shell in zsh tcsh fish; do want "$shell" "$shell"; done # login shells of accounts on ssh hosts
    for tool in cmake meson; do want "$tool" "$tool"; done # build systems
    want ninja ninja-build
    want mold mold # links layouts; lld and gold are used if they are installed
    want autoreconf autoconf
    want automake automake
    want libtoolize libtool
    want tclsh tcl
    want valgrind valgrind
    want ctags universal-ctags # finds changed functions; without it they are approximate
    want chromium chromium # opens the pages of reports
    [ -e /usr/share/i18n/locales/de_DE ] || optional="$optional locales"
    for tool in curl jq; do want "$tool" "$tool"; done # used in examples of notifications
    want redis-server redis-server
    # Leased machines: the tests start their own Slurm.
    for daemon in slurmctld slurmd; do [ -x /usr/sbin/$daemon ] || optional="$optional $daemon"; done
    [ -x /usr/sbin/munged ] || optional="$optional munge"
    want salloc slurm-client
    want db_bench rocksdb-tools
    want fio fio
    [ -x /usr/sbin/mariadbd ] || optional="$optional mariadb-server-core mariadb-client"
    # For the hunt in Debian's source package of PostgreSQL.
    want dpkg-source dpkg-dev
    want dh_autoreconf dh-autoreconf
    want dh_auto_configure debhelper
    want pg_lsclusters postgresql-common
    want bison bison
    want flex flex
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || optional="$optional postgresql-common postgresql"
fi

[ -z "$missing$optional" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    [ -n "$optional" ] && echo "Optional packages are missing. To install them: sudo apt-get install$optional" >&2
    [ -z "$missing" ] && exit 0
    echo "Required packages are missing. To install them: sudo apt-get install$missing" >&2
    exit 4
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086  # a list of package names
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
[ -n "$optional" ] || exit 0

# Tests start their own servers. So no server of a package is started, and PostgreSQL's package creates no cluster.
policy=/usr/sbin/policy-rc.d clusters=/etc/postgresql-common/createcluster.conf
undo() {
    [ -z "${ours:-}" ] || rm -f "$policy"
    [ ! -e "$clusters.before" ] || mv "$clusters.before" "$clusters"
}
trap undo EXIT
trap 'exit 130' HUP INT TERM
mark="# Of perfbisect's set-up, which removes it at its end."
if [ ! -e "$policy" ] || grep -qxF "$mark" "$policy"; then # left behind by a killed set-up
    ours=yes
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod +x "$policy"
fi
for package in $optional; do
    if [ "$package" = postgresql ] && [ -e "$clusters" ]; then
        [ -e "$clusters.before" ] || cp -p "$clusters" "$clusters.before"
        echo "create_main_cluster = false" >>"$clusters"
    fi
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null || echo "Optional package not installed: $package" >&2
done
