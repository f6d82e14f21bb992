"""Names of functions, as symbol tables and as the source code have them."""

import pytest

from perfbisect.core.explain.names import same, short, split


@pytest.mark.parametrize(
    ("function", "scope", "own"),
    [
        ("row_search_mvcc", "", "row_search_mvcc"),
        ("node_search.constprop.0", "", "node_search"),
        ("memcpy@plt", "", "memcpy"),
        ("B<int>::insert(std::string const&)", "B", "insert"),
        ("void ns::B<int>::insert(int) const [clone .cold]", "B", "insert"),
        ("std::vector<std::pair<int, int>>::push_back(std::pair<int, int>&&)", "vector", "push_back"),
        ("(anonymous namespace)::f(int)", "", "f"),
        ("n::B::~B()", "B", "~B"),
        ("B::operator==(int) const", "B", "operator=="),
        ("operator ==", "", "operator=="),
        ("B::operator()(int)", "B", "operator()"),
        ("std::operator<< <char>(std::ostream&)", "std", "operator<<"),
        ("B::operator bool() const", "B", "operatorbool"),
        ("B::operator new[](unsigned long)", "B", "operatornew[]"),
        ('operator"" _km(long double)', "", 'operator""_km'),
        ("B::operator->() const", "B", "operator->"),
        ("ns::operators::Page::insert(int)", "Page", "insert"),
        ("engine::operator::next", "operator", "next"),
        ("operator_of(int)", "", "operator_of"),
        ("scan(Table*)::{lambda(int)#1}::operator()(int) const", "", "scan"),
        ("engine::page::insert::h0123456789abcdef", "page", "insert"),
        ("engine::page::insert::{{closure}}::h0123456789abcdef", "page", "insert"),
        ("main.(*Tree).Insert", "", "Insert"),
        ("f[abi:cxx11](int)", "", "f"),
        ("[libz.so.1]", "", ""),
        ("", "", ""),
    ],
)
def test_scope_and_own_name(function: str, scope: str, own: str) -> None:
    assert split(function) == (scope, own)


def test_names_mean_one_function_unless_their_scopes_differ() -> None:
    assert same("ns::Page::insert(int) const", "Page::insert")
    assert same("insert", "Page::insert")
    assert not same("Tree::insert(int)", "Page::insert")
    assert not same("[libz.so.1]", "[libz.so.1]"), "addresses without a name"


def test_operators_are_shown_whole() -> None:
    assert short("ns::operators::Page::insert(int)") == "ns::operators::Page::insert"
    assert short("ns::B::operator()(int) const") == "ns::B::operator()(int) const"
