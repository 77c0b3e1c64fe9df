"""The inputs below are real leftovers of the data sets, or made after them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tta_diffusion.data.clean import CLEANERS
from tta_diffusion.data.clean.spaced import detokenise

SAME = object()


def check(kind: str, text: str, expected: object) -> None:
    assert CLEANERS.get(kind)(text) == (text if expected is SAME else expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Szczecin (; ]; German: Stettin) is the capital of a province in the north of Poland.",
            "Szczecin (German: Stettin) is the capital of a province in the north of Poland.",
        ),
        (
            "W. Disney (; December 5, 1901 – December 15, 1966) was an American animator and a producer of films.",
            "W. Disney (December 5, 1901 – December 15, 1966) was an American animator and a producer of films.",
        ),
        (
            "The Styx (; Ancient\xa0Greek: Στύξ ]) is a river in Greek mythology that divides two worlds.",
            "The Styx is a river in Greek mythology that divides two worlds.",
        ),
        ("May ( ) is the fifth month of the year in both calendars.",
         "May is the fifth month of the year in both calendars."),
        (
            "The line has about fifteen riders per day (as of 2003[ [update]]). It successfully shows the idea.",
            "The line has about fifteen riders per day (as of 2003). It successfully shows the idea.",
        ),
        (
            "s of February 2011[ [update]], Uganda maintains the following small units in the field.",
            "As of February 2011, Uganda maintains the following small units in the field.",
        ),
        ("Year 718 (DCCXVIII) was a common year starting on Saturday (link will display the full calendar).", None),
        ("Freeman has appeared in many other hits, including \"Unforgiven\", \"\", \"Seven\" and many more.", None),
        ("When no external forces are present (i.e. when formula_7), this can be rewritten in this form.", None),
        ("He is currently chief executive of , a research and development company in the north.", None),
        ("The following proposals were announced by the Prime Minister at the summit:", None),
        ("Members are Nanette Fabray, Kaye Ballard, Wally Cox, Morey Amsterdam, Florence Henderson, Buddy Hackett.",
         None),
    ],
)  # fmt: skip
def test_wikipedia(text: str, expected: object) -> None:
    check("wikipedia", text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Southeast Coast Sees Fewer Nests (AP) AP - About half the usual number of turtles have nested there.",
            "About half the usual number of turtles have nested there.",
        ),
        (
            "A sample of things to comeATHENS -- The Games ended here last night with the last run of the day.",
            "The Games ended here last night with the last run of the day.",
        ),
        (
            "Mitsubishi chiefs deny cover upThe Japanese car maker and three former executives plead not guilty.",
            "The Japanese car maker and three former executives plead not guilty.",
        ),
        (
            "Qantas in talks on cost cuts SYDNEY: Australia #39;s flagship carrier said it is talking with others.",
            "Australia's flagship carrier said it is talking with others.",
        ),
        (
            "Krispy Kreme report delayed . Shares fell after an auditor refused to sign off its &quot;sums &quot;.",
            'Shares fell after an auditor refused to sign off its "sums".',
        ),
        ("Toll Brothers Profits Beat Estimates Luxury home builder Toll Brothers Inc. reported strong demand.", None),
        ("The head of the food programme says China should start giving, rather than receiving, food aid.", SAME),
        ("Ma icirc;tre Dupont of Paris won the first case of his long career on Monday.",
         "Maître Dupont of Paris won the first case of his long career on Monday."),
        ("The firm said on Tuesday it had not started a ...", None),
    ],
)  # fmt: skip
def test_news(text: str, expected: object) -> None:
    check("news", text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A great and long film.<br /><br />I loved it a lot!!!!", "A great and long film.\nI loved it a lot!"),
        ("i went there twice. the food was good and i'm glad.", "I went there twice. The food was good and I'm glad."),
        ("It is going to be a must.Watching it again was nice...though long.",
         "It is going to be a must. Watching it again was nice... though long."),
        ("The plot is simple \x96 a band plays in a former factory.",
         "The plot is simple – a band plays in a former factory."),
        ("The script was _obviously_ written by someone else :)  Really.",
         "The script was obviously written by someone else Really."),
        ("We will be back soon. Best place in", "We will be back soon."),
        ("See my blog for more of this kind: http://example.org/blog today.", None),
        ("GO AND READ THE BOOK INSTEAD OF THIS MOVIE.", None),
        ("9/10", None),
    ],
)  # fmt: skip
def test_reviews(text: str, expected: object) -> None:
    check("web_review", text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i do n't know , really .", "I don't know, really."),
        ("it 's always a pleasure to stop in my favorite mexican place !",
         "It's always a pleasure to stop in my favorite Mexican place!"),
        ("they say `` best in town '' and i 'd agree ( mostly ) .",
         'They say "best in town" and I\'d agree (mostly).'),
        ("it took less than _num_ minutes to get across .", None),
        ("a bottle of wine costs $ 5 here .", "A bottle of wine costs $5 here."),
    ],
)  # fmt: skip
def test_spaced(text: str, expected: object) -> None:
    check("spaced", text, expected)


def test_detokenising_written_text_changes_nothing() -> None:
    text = "He said \"it can't be (or can it?)\", then left; $5 was the boys' share."
    assert detokenise(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"\n\nIt would be ""better"" to ask first, I think.  (talk) "', 'It would be "better" to ask first, I think.'),
        ("A heading \n\nSo now what? Do we just go ahead and remove it?   03:28, 27 May 2008 (UTC)",
         "So now what? Do we just go ahead and remove it?"),
        ("REDIRECT Talk:James Hadley (American scholar)", None),
        ("Please see WP:EL and WP:BLP as to which links you can add here.", None),
        ("Go and talk with him too, why only with me?", SAME),
    ],
)  # fmt: skip
def test_comments(text: str, expected: object) -> None:
    check("comment", text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "CHAPTER I. A heading of the book.\n“Yes, yes,” said Anne--“but not ‘now.’”",
            '"Yes, yes," said Anne—"but not \'now.\'"',
        ),
        ("He put the sisters into the carriage 435", None),
        ("NORA. Do you think that I ought to go home now?", None),
        ("Miss Bartlett tapped on the wall.", SAME),
        ("1. THE OLD SEA-DOG 11 2. BLACK DOG APPEARS . . . . 17", None),
    ],
)
def test_books(text: str, expected: object) -> None:
    check("book", text, expected)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'wikipedia'"):
        CLEANERS.get("wikipeda")


@given(st.sampled_from(sorted(CLEANERS)), st.text(max_size=80) | st.text(alphabet="aB .\"'&;#<>(]\n-!?9", max_size=80))
def test_cleaners_take_any_text_and_leave_no_stray_space(kind: str, text: str) -> None:
    cleaned = CLEANERS.get(kind)(text)
    if cleaned is not None:
        assert cleaned.strip() == cleaned != ""
        assert "  " not in cleaned
        assert "\n\n" not in cleaned
