"""Why a culprit is slower: the measurements of the explanation lead to classes, functions and plans."""
