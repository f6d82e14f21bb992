#!/bin/sh
for statement do :; done
statement=${statement#--execute=}
printf '%s\n' "$statement" >>"$LOG"
for word in $UNKNOWN; do case $statement in SHOW*"$word"*) exit 0;; *"$word"*) exit 1;; esac; done
case $statement in
    SHOW*rocksdb_compact_lzero_now*) echo rocksdb_compact_lzero_now OFF ;;
    SET*) echo "$BUSY" >"$LOG.left" ;;
    SELECT*)
        left=$(cat "$LOG.left" 2>/dev/null || echo 0)
        if [ "$left" -gt 0 ]; then echo $((left - 1)) >"$LOG.left"; echo 1; else echo 0; fi
        ;;
esac
