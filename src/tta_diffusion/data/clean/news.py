"""Short news items (AG News): broken escapes, agency marks, and headlines run into the text.

The items are "headline body" with nothing reliable between the two. The body alone is good prose, so the
headline is cut where its end can be recognised, and the item is dropped where a headline is there but has no
recognisable end.
"""

from __future__ import annotations

import html
import re

from tta_diffusion.data.clean.common import (
    CLEANERS,
    balanced,
    begins_like_a_sentence,
    has_foreign_letters,
    has_link,
    is_prose,
    normalise,
    tidy_punctuation,
    up_to_last_stop,
)

# --- escapes that lost their ampersand, or their meaning -----------------------------------------------------

_ESCAPE = re.compile(
    r"( ?)&?(#x?[0-9a-fA-F]{2,5}|quot|amp|lt|gt|apos|nbsp|hellip|[mn]dash|[lr][sd]quo|pound|euro|cent"
    r"|[a-zA-Z](?:acute|grave|circ|uml|tilde|cedil|ring|slash)|szlig);( ?)"
)
_DOUBLE_QUOTED = re.compile(r"\" ?([^\"]*?) ?\"")
_SINGLE_QUOTED = re.compile(r"(?<![\w'])'([^' ][^']{0,60}?) '(?=[\s.,;:!?A-Z]|$)")
_PLURAL_POSSESSIVE = re.compile(r"(?<=s) '(?= \w)")
_APOSTROPHE = re.compile(r"(?<=\w) '(?=(?:s|t|re|ve|ll|d|ite|ites)\b)")
_TICKER = re.compile(
    r" (?:[A-Z]{2,5}\.[A-Z]{1,2}(?=[ ,.])|\((?:Nasdaq|NYSE|Quote|Profile|Research|LSE|TSX)\b[^)]*\))"
    r"|\([A-Z]{2,5}\.[A-Z]{1,2}\)",
)


def _unescape(match: re.Match[str]) -> str:
    character = html.unescape(f"&{match[2]};")
    if character.isalpha():  # "ma icirc;tre"
        return character + match[3]
    if character == "'":  # "world #39;s", "farmers #39; market"
        return "'" + match[3]
    return match[1] + character + match[3]


def repair(text: str) -> str:
    """Escapes back to characters, quotation marks next to the words they quote, no ticker symbols."""
    text = normalise(_ESCAPE.sub(_unescape, text).replace("\\$", "$").replace("\\", " "))
    text = _DOUBLE_QUOTED.sub(r'"\1"', text)
    text = re.sub(r"(?<=\w\")(?=\w)", " ", text) if text.count('"') == 2 else text
    text = _SINGLE_QUOTED.sub(r"'\1'", text)
    text = _APOSTROPHE.sub("'", _PLURAL_POSSESSIVE.sub("'", text))
    return _TICKER.sub("", text)


# --- where the headline ends ---------------------------------------------------------------------------------

_HEAD = 170  # a headline and its agency mark are not longer
_AGENCY = re.compile(r"\(([A-Z][\w.&' ]{1,24})\) ?(?:\1)? ?(?:--?|—|–) ?")
_DATELINE = re.compile(
    r"(?:^|[ .a-z])(?:[A-Z]{4,}|[A-Z]{2,}(?: [A-Z]{3,})+)(?:, [A-Z][\w. ]{1,20})?(?:, [A-Z][a-z]{2,4}\.? \d+)?"
    r"(?: \([\w. ]+\))? ?(?:--?|—|–|:) "
)
_OPENING_MARK = re.compile(r"^(?:By [A-Z ]+ )?[A-Z][\w.&]*(?: [A-Z][\w.&]*){0,2}(?:, [A-Z]\w+\.?)? (?:--?|—|–) ")
_DATE_MARK = re.compile(r"^[A-Z][\w ,.]{3,45}\b(?:19|20)\d\d (?:--?|—|–) ")
_LOOSE_STOP = re.compile(r" \. (?=[A-Z\"'])")
# "SmokersBy", "windfallENERGY", "final?England": two words without the space between.
_CERTAIN_GLUE = re.compile(
    r"(?<=\b[a-z])[a-z]+(?:[!?'\")]|(?=[A-Z]))(?=[A-Z])|[a-z][!?](?=[A-Z])|\d(?=[A-Z][a-z]+ [a-z])"
)
_CAMEL = re.compile(r"\b([A-Z][a-z']{2,})([A-Z][A-Za-z]*)")
_CAMEL_NAMES_TEXT = (
    "PeopleSoft NewsFactor RealNetworks PlayStation PowerBook BlackBerry MacCentral SpaceShip PalmOne "
    "ConocoPhillips InfoWorld HealthDay SiliconValley FedEx VeriSign TechWeb DaimlerChrysler BellSouth "
    "ContentGuard PayPal PalmSource MasterCard TheDeal ThinkPad BladeCenter NatWest FleetBoston "
    "GlaxoSmith PepsiCo NetRatings MotoGP EarthLink RadioShack WebLogic AstraZeneca FileMaker DreamWorks "
    "AdSense AdWords SanDisk TruSecure IronPort MessageLabs BusinessWeek StreamCast VirusScan FireFox "
    "PestPatrol WebSphere ProLiant BlackRock SunGard AmeriSuites ChevronTexaco CallVantage AirTran "
    "NetBeans FrontBridge SharePoint JetBlue OpenOffice ExxonMobil "
    "StorageTek NetSuite QuickTime OfficeMax LeBron LaSalle DirecTV FujiFilm WorldCom MovieTickets "
    "PricewaterhouseCoopers SmartMoney DeLay DiMarco MySQL VoIP TiVo SuSE WiFi WiMax AmBev DuPont DoCoMo "
    "MyDoom JibJab DaVita McAfee"
)
_CAMEL_NAMES = frozenset(_CAMEL_NAMES_TEXT.split())
_OPENER = re.compile(
    r"(?<=[\w%'\")]) (?=(?:The|An?|In|It|He|She|They|If|When|With|After|As|For|Under|While|Two|Three|Four|Their|His|"
    r"This|These|Despite|There|Some|Many|Nearly|More than|Shares|Officials|Scientists|Researchers|Police) )"
)
# The items were cut at a length, often after the point of an abbreviation or a number.
_CUT_AT_POINT = re.compile(r"(?:\b(?:St|Mr|Mrs|Dr|No|vs|Gen|Sen|Rep|Gov|Lt|Col|U\.S|U\.N|www)|\d|\b[A-Z])\.$")
_SHOUT = re.compile(r"^(?:[A-Z]{4,}|THE|TWO|A [A-Z]{4,})(?: [A-Z]{4,})*(?=[ ',])")
_ACRONYMS_TEXT = "NATO NASA OPEC AIDS NASCAR NCAA UEFA FIFA NASDAQ UNICEF CONCACAF ASEAN HBOS OPEC"
_ACRONYMS = frozenset(_ACRONYMS_TEXT.split())
_SMALL_WORDS_TEXT = "a an and as at but by for from in is it its of on or over the to up vs with into"
_SMALL_WORDS = frozenset(_SMALL_WORDS_TEXT.split())


def _camel_glue(head: str) -> int:
    for match in _CAMEL.finditer(head):
        known = any((match[1] + match[2]).startswith(name) for name in _CAMEL_NAMES)
        if not known and match[1] not in ("Mac", "Mcc", "Van", "Fitz", "Dela", "Dev") and match.start() > 8:
            return match.start(2)
    return 0


def headline_end(text: str) -> int:
    """Where the body starts; 0 if no end of a headline is recognised."""
    head = text[:_HEAD]
    for mark in (_AGENCY, _DATELINE):
        if found := list(mark.finditer(head)):
            return found[-1].end()
    if found_one := _OPENING_MARK.match(head) or _DATE_MARK.match(head):
        return found_one.end()
    if found_one := _LOOSE_STOP.search(head):
        return found_one.end()
    if found_one := _CERTAIN_GLUE.search(head[:120]):
        return found_one.end()
    if cut := _camel_glue(head[:120]):
        return cut
    opener = _OPENER.search(head[:110], 14)
    return opener.end() if opener and not re.search(r"[.!?,;]", head[: opener.start()]) else 0


def _looks_run_in(text: str) -> bool:
    """Title Case at the start, or a name that comes twice in the first sentence: an uncut headline."""
    words = re.findall(r"[\w'-]+", text[:_HEAD])
    opening = [w for w in words[:7] if w.lower() not in _SMALL_WORDS]
    if len(opening) >= 4 and all(w[0].isupper() or w[0].isdigit() for w in opening):
        return True
    names = [w.removesuffix("'s") for w in words if w[0].isupper() and len(w) > 3]
    return len(set(names)) < len(names)


def _soften(match: re.Match[str]) -> str:
    return " ".join(w if w in _ACRONYMS else w.capitalize() for w in match[0].split(" "))


@CLEANERS.register("news")
def clean_news(text: str) -> str | None:
    text = repair(text).replace("\n", " ")
    cut = headline_end(text)
    if not cut and _looks_run_in(text):
        return None
    text = text[cut:].lstrip(" -–—.:")
    text = text[headline_end(text) if _DATELINE.match(text) else 0 :]  # "Headline . CITY - Body"
    text = re.sub(r" \.\.\.$", "", text)  # cut off within a sentence
    text = tidy_punctuation(re.sub(r"(?<=\w)\.\.\.$", ".", text))
    text = _SHOUT.sub(_soften, up_to_last_stop(_CUT_AT_POINT.sub("", text)))
    if not begins_like_a_sentence(text) or not balanced(text):
        return None
    if has_link(text) or has_foreign_letters(text) or re.search(r"[|{}<>=_*~\[\]]|[a-z]{3}[A-Z][a-z]{3}", text[:_HEAD]):
        return None
    return text if is_prose(text, min_words=8) else None
