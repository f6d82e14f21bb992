# Everything is relative to the folder of the server: the path of a socket must be short.
cd "$(mktemp -d)"
redis-server --port 0 --unixsocket socket --save '' --dir . >/dev/null &
server=$!
trap 'kill $server; wait $server; rm -rf "$PWD"' EXIT
until redis-cli -s socket ping >/dev/null 2>&1; do kill -0 $server && sleep 0.02 || exit; done
redis-benchmark -s socket -c 4 -n 4000 --csv eval "$(cat "$0.lua")" 0
