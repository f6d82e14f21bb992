"""Why a culprit is slower: from what the explanation measured to classes, functions and plans. Pure."""
