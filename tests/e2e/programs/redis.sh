src/redis-server --port 0 --unixsocket "$0/socket" --dir "$0" --save '' >/dev/null &
server=$!
until src/redis-cli -s "$0/socket" ping >/dev/null 2>&1; do kill -0 $server && sleep 0.05 || exit; done
src/redis-benchmark -s "$0/socket" -t get -n 5000 --csv
kill $server && wait $server
