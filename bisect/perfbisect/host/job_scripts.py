"""The shell scripts that start, supervise, follow and end a job. See ``perfbisect.host.jobs``."""

# A collector copies a stream (stdout or stderr) of the job's command from a pipe, which is as fast as a file, to the
# job's file $1. The first $2 bytes are copied immediately, for readers that follow the job. Further bytes go to the
# files $1.1, $1.2, … of $3 bytes each, of which only the last two are kept; at the end, the leader appends these two to
# $1. A collector belongs to the leader's session, but is no child of the leader: all descendants of the leader are
# processes of the command. A collector ignores the signals that end the command, and ends when no process has the pipe
# open for writing. Then the collector replaces the blanks in the file $1.kept by a text that says how it ended; after a
# killed collector the blanks remain. A running collector locks $1.kept. If $1 cannot be written, the collector still
# reads the pipe, so that the command can continue.
COLLECT = """\
collect() {
    trap '' HUP INT TERM
    export LC_ALL=C
    part=0; to=$1; size=$2
    while
        why=$(exec stdbuf -o0 head -c "$size" 2>&1 >>"$to"); failed=$?
        [ "$failed" = 0 ] && [ "$(wc -c <"$to")" -ge "$size" ]
    do
        part=$((part + 1)); to=$1.$part; size=$3
        rm -f "$1.$((part - 2))"
    done
    [ "$failed" -lt 128 ] || exit
    [ "$failed" != 0 ] || why=whole
    printf '%s\\n' "${why:-it cannot be written}" 1<>"$1.kept"
    exec cat >/dev/null
}
attach() {
    exec 7<>"$1.pipe"
    ( exec 6<"$1.pipe" 8<>"$1.kept" 4>&- 5>&- 7>&- 9>&-; flock 8; collect "$@" <&6 6<&- & )
    exec 5>"$1.pipe" 7>&-
}
"""

# The leader waits until a collector ends, except if processes that the command left behind have the collector's pipe $4
# open for writing. Then the leader appends the end of the output, at most $3 bytes, to the job's file, after a note of
# the number of omitted bytes.
FINISH = """\
held() {
    ls -l /proc/[0-9]*/fd 2>/dev/null | grep '^l.w' | grep -q -F -e "-> $1"
}
finish() {
    tries=0; ended=1
    until flock -w 0.5 "$1.kept" true; do
        tries=$((tries + 1))
        [ "$tries" -lt 2 ] || ! held "$4" || { ended=; break; }
        [ "$tries" -lt 240 ] || { signalled=1; return; }
    done
    read -r how <"$1.kept" || how=
    case $how$ended in
        whole*|'') join "$1" "$3";;
        1) signalled=1;;
        *) torn=torn;;
    esac
}
join() {
    last=$(cd -- "${1%/*}" && ls -v "${1##*/}".[0-9]* 2>/dev/null | tail -n 1); part=${last##*.}
    [ -n "$part" ] || return 0
    left=$(((part - 2) * $2 + $(wc -c <"$1.$part")))
    why=$(
        {
            [ "$part" = 1 ] || [ "$left" = 0 ] || printf '\\n[perfbisect left out %s bytes here]\\n' "$left"
            cat "$1.$((part - 1))" "$1.$part" 2>/dev/null | tail -c "$2"
        } 2>&1 >>"$1"
    )
    if [ -n "$why" ]; then
        torn=torn
        printf '%s\\n' "$why" 1<>"$1.kept"
    fi
    rm -f "$1.$((part - 1))" "$1.$part"
}
"""

# Leads the job in the folder $1; the script is appended to COLLECT and FINISH. The leader handles signals, and does not
# ignore them, because a command inherits ignored signals: so TERM ends the command, but not the leader. The job gets no
# status if the command was killed from outside, which the leader concludes in three cases: the leader got a signal, too
# (in an orderly shutdown, perhaps a little later than the command); the command ended by a signal, or with timeout's
# status for a signal, before $2 seconds had passed; or a collector was killed. The status replaces blanks in its file,
# so that it needs no space on a full disk. If memory runs out, the kernel kills the command first (oom_score_adj).
LEADER = """\
exec 9>>"$1/alive"; flock -n 9 && [ ! -s "$1/pid" ] || exit
signalled=; torn=
trap signalled=1 HUP INT TERM
read -r stat </proc/self/stat
read -r began rest </proc/uptime
folder=$(cd -P -- "$1" && pwd -P)
attach "$1/stdout" "$3" "$4"
exec 4>&5
[ "$5" = merged ] || attach "$1/stderr" "$3" "$4"
cat /proc/sys/kernel/random/boot_id >"$1/boot"
printf '%s\\n' "$stat" >"$1/pid"
rm -f "$1/stdout.pipe" "$1/stderr.pipe"
({ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; exec sh "$1/command" >&4 2>&5 4>&- 5>&-) 9>&-
status=$?
exec 4>&- 5>&-
read -r now rest </proc/uptime
finish "$1/stdout" "$3" "$4" "$folder/stdout.pipe"
[ "$5" = merged ] || finish "$1/stderr" "$3" "$4" "$folder/stderr.pipe"
[ "$status" = 0 ] || [ "$status" -ge 128 ] || sleep 0.1
case $status in
    124|129|130|137|143) [ "$((${now%.*} - ${began%.*}))" -ge "$2" ] || signalled=1;;
esac
[ -n "$signalled" ] || printf '%s\\n' "${torn:-$status}" 1<>"$1/status"
"""

# Starts the leader script $7 of a job in the job's folder $1, unless the leader was started before. Standard input is
# the command, which fails if its working directory $2 does not exist. cat writes the files, because its error message
# names a full disk; a shell's printf only says "I/O error".
START = """\
! cd -- "$2" 2>/dev/null || command -v -- "$3" >/dev/null || exit 127
(umask 077; mkdir -p "$1") && mkdir -p "$4" || exit 1
set -e
if [ ! -e "$1/alive" ]; then
    printf '    \\n' | cat >"$1/status"
    (umask 077; cat >"$1/command")
    for stream in stdout stderr; do
        : >"$1/$stream"
        printf '%200s\\n' '' | cat >"$1/$stream.kept"
        [ -p "$1/$stream.pipe" ] || mkfifo "$1/$stream.pipe"
    done
fi
if [ ! -s "$1/pid" ]; then
    setsid sh -c "$7" leader "$1" "$6" "$8" "$9" "$5" </dev/null >>"$1/stdout" 2>>"$1/stderr" &
fi
tries=0
until [ -s "$1/pid" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 500 ] || { echo "the leader does not start" >&2; exit 1; }
    sleep 0.01
done
cat "$1/pid"
"""

# For a job whose start was interrupted: the leader writes its pid before it reads the command. So either its pid exists,
# which is printed, or nothing runs any more.
ABANDON = 'rm -f "$1/command"; cat "$1/pid" 2>/dev/null || rm -rf -- "$1"'

# Prints the state: "running", "lost", "torn" if the output could not be written, or the exit status. A zombie counts as
# ended, because its parent does not reap it.
STATE = """\
from_this_boot() {
    { read -r then <"$1/boot" && read -r now </proc/sys/kernel/random/boot_id; } 2>/dev/null && [ "$then" = "$now" ]
}
state() {
    read -r status <"$1/status" || status=
    [ -z "$status" ] || { echo "$status"; return; }
    from_this_boot "$1" || { echo lost; return; }
    { read -r stat </proc/"$2"/stat; } 2>/dev/null || stat=
    set -- "$1" "$3" ${stat##*) }
    case $3 in ''|Z|X) ;; *) [ "${22}" != "$2" ] || { echo running; return; };; esac
    read -r status <"$1/status" || status=
    echo "${status:-lost}"
}
"""

# This script and the next two scripts are appended to STATE. Waits up to $7 seconds for the leader's end; then prints
# the state, and a chunk of the output. The state is read first, so that the output of an ended job is complete.
POLL = """\
[ "$7" = 0 ] || flock -s -w "$7" "$1/alive" true || :
state=$(state "$1" "$2" "$3") || exit
echo "$state"
[ "$5" = 0 ] || dd if="$1/$6" iflag=skip_bytes skip="$4" bs="$5" count=1 status=none | base64 -w 0
"""

# Ends all processes of the leader's session and their descendants, because children of some servers open their own
# sessions. Each process gets TERM once, as soon as it is seen; after $4 tries, all processes get KILL until no process
# remains. If another process has the leader's pid, the session has ended, because no process gets the number of an
# existing session as its pid. After a reboot the session has ended, too, but another session may have its number.
KILL = """\
members() {
    ps -e -o pid= -o ppid= -o sess= -o stat= | awk -v leader="$1" '
        { parent[$1] = $2; dead[$1] = $4 ~ /^[ZX]/; if ($3 == leader) member[$1] = 1 }
        END {
            do {
                more = 0
                for (p in parent) if (!(p in member) && (parent[p] in member)) { member[p] = 1; more = 1 }
            } while (more)
            for (p in member) if (!dead[p]) print p
        }'
}
from_this_boot "$1" || exit 0
{ read -r stat </proc/"$2"/stat; } 2>/dev/null || stat=
if [ -n "$stat" ]; then
    born=$(set -- ${stat##*) }; echo "${20}")
    [ "$born" = "$3" ] || exit 0
fi
signalled=' '; tries=0
while pids=$(members "$2"); [ -n "$pids" ]; do
    for pid in $pids; do
        if [ "$tries" -ge "$4" ]; then kill -s KILL "$pid" 2>/dev/null
        else case $signalled in *" $pid "*) ;; *) kill -s TERM "$pid" 2>/dev/null; signalled="$signalled$pid ";; esac
        fi
    done
    tries=$((tries + 1))
    sleep 0.05
done
[ "$(state "$1" "$2" "$3")" != lost ] || echo 137 1<>"$1/status"
"""

# Prints state, folder and /proc/PID/stat of each job that runs, or is orphaned: its leader alone was killed, and some of
# its processes still run. $1 is the folder of all jobs.
UNENDED = """\
sessions=$(ps -e -o sess= -o stat= | awk '$2 !~ /^[ZX]/ { printf " %s ", $1 }')
for status in "$1"/*/status; do
    read -r ended <"$status" && [ -z "$ended" ] || continue
    folder=${status%/*}
    read -r leader <"$folder/pid" || continue
    set -- "$1" ${leader##*) }
    case "$(state "$folder" "${leader%% *}" "${21}") $sessions" in
        'running '*) printf 'running\\n%s\\n%s\\n' "$folder" "$leader";;
        'lost '*" ${leader%% *} "*) ! from_this_boot "$folder" || printf 'orphaned\\n%s\\n%s\\n' "$folder" "$leader";;
    esac
done 2>/dev/null
"""
