from perfbisect.report.page.diff import LONGEST, parsed

DIFF = """diff --git a/src/a b.c b/src/a b.c
index 1..2 100644
--- a/src/a b.c
+++ b/src/a b.c
@@ -3,4 +3,5 @@ static void work(int x)
 same
-old
+new
+more
 end
@@ -40 +41 @@
-x
\\ No newline at end of file
+y
diff --git a/logo.png b/logo.png
index 1..2 100644
Binary files a/logo.png and b/logo.png differ
"""


def test_a_diff_is_files_hunks_and_lines() -> None:
    source, picture = parsed(DIFF)
    assert (source.path, source.added, source.removed) == ("src/a b.c", 3, 2)
    first, second = source.hunks
    assert first.scope == "static void work(int x)"
    assert [(line.kind, line.old, line.new, line.text) for line in first.lines] == [
        ("same", 3, 3, "same"),
        ("del", 4, 0, "old"),
        ("add", 0, 4, "new"),
        ("add", 0, 5, "more"),
        ("same", 5, 6, "end"),
    ]
    assert [(line.kind, line.old, line.new) for line in second.lines] == [("del", 40, 0), ("add", 0, 41)]
    assert (picture.note, picture.hunks) == ("binary", [])


def test_lines_that_look_like_headers_stay_lines() -> None:
    [file] = parsed("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- a/y\n+++ b/y\n")
    assert [line.text for line in file.hunks[0].lines] == ["-- a/y", "++ b/y"]


def test_long_lines_are_cut_and_carriage_returns_are_no_text() -> None:
    [file] = parsed(f"diff --git a/x b/x\n@@ -1 +1 @@\n+{'z' * 5000}\n+dos\r\n")
    long, dos = file.hunks[0].lines
    assert len(long.text) == LONGEST
    assert dos.text == "dos"


def test_no_diff_has_no_files() -> None:
    assert parsed("") == []
