"""What every topic shares: times, numbers, reasons and consequences, openings, relatives and trades."""

COMMON_RULES: dict[str, str] = {
    "when_past": """
on {DATE}
on {DATE}
yesterday
last <weekday>
<number> weeks ago
(last|that) (week|month|summer|winter|spring|autumn)
the other day
(early|late) on {DATE}
before <weekday>
""",
    "when_present": """
every <weekday>
(most|some) (mornings|evenings|weekends)
(once|twice|three times) a (week|month|year)
these days
whenever {PERSON} is in town
until {DATE}
(early|late) in the (morning|evening)
""",
    "when_future": """
on {DATE}
on {DATE}
next <weekday>
tomorrow
in <number> weeks
before {DATE}
(later|early) (this|next) (week|month|year)
as soon as {PERSON} is back
""",
    "when_perfect": """
since {DATE}
recently
(twice|three times) this (week|month|year)
at last
again
for <number> weeks now
""",
    "when_progressive": """
at the moment
this (week|month|afternoon)
until {DATE}
today
right now
for the time being
""",
    "when_modal": """
before {DATE}
on <weekday>
next (week|month)
by {DATE}
(this|next) year
at the weekend
""",
    "tail": """
because <reason>
because <reason>
so <effect>
but <contrast>
although <contrast>
and <effect>
which <relative>
which <relative>
even though <reason>
unless <condition_clause>
in case <condition_clause>
if <condition_clause>
and {PERSON} says <opinion>
just as {PERSON} predicted
as I told {SOMEBODY}
without telling {SOMEBODY}
instead of <gerund>
after <gerund>
before <gerund>
""",
    "reason": """
there was no other way
it was (cheaper|quicker|easier|safer) than last time
{PERSON} (asked|insisted|suggested it|begged me)
time is (short|precious|running out)
the (weather|traffic|heating|timing) was (bad|awful|hopeless|perfect)
nobody else (wanted to|had the time|could be bothered|knew how)
it had been (planned|postponed|promised|forgotten) for (weeks|months|ages)
{ORG} would not (listen|pay|wait|help|change the date)
(money|space|sleep|patience) is (tight|short|scarce)
the children were (ill|bored|at school|staying with friends)
my (car|phone|bicycle|alarm clock) (broke down|had died|was stolen|was at the menders)
everyone in {GPE} was talking about it
""",
    "effect": """
we are all (relieved|pleased|tired|furious|very proud)
nobody (noticed|complained|was surprised|said a word)
I (slept|laughed|worried|cried) all night
{PERSON} (was delighted|did not believe it|paid for everything|went home early)
it (cost|took) twice as (much|long) as (planned|promised|expected)
everything is (fine|settled|in order|back to normal) now
there is (nothing|little|plenty) left to do
the rest (can|must|will have to) wait until <weekday>
I will (ring|email|ask|thank|tell) {PERSON} about it
we (missed|cancelled|enjoyed|nearly forgot) the rest
""",
    "contrast": """
nobody (minded|knew why|thanked us|believed it)
it was not (easy|cheap|my idea|what we wanted|quite the same)
I still (prefer|miss|remember|dream of) the old one
{PERSON} (disagrees|had warned us|never turned up|was against it)
the (details|dates|figures|papers) are not (clear|settled|ready|final) yet
there were (problems|complaints|delays|doubts) at first
it rained (all day|as usual|from start to finish)
{ORG} (promised|offered|wanted) something else
I would not (do it|go there|recommend it|try that) again
""",
    "relative": """
was (kind|odd|typical|clever|rude|unexpected) of {PERSON}
is (better|worse|more|less) than (nothing|expected|last year|we hoped)
took (all day|ages|most of the afternoon|longer than it should)
made {PERSON} (laugh|very angry|proud|jealous|nervous)
(surprised|annoyed|pleased|confused) everyone at {FIRM}
is what I (wanted|feared|expected|asked for) all along
costs (nothing|a fortune|more every year|too much)
""",
    "condition_clause": """
{PERSON} (changes plans|says no|needs help|has a better idea)
it (rains|gets late|snows|turns out badly|works)
{ORG} (agrees|objects|calls back|is closed|sends the papers)
the (weather|price|timing|doctor) (allows it|gets worse|is right)
something (goes wrong|better comes up|urgent happens)
""",
    "opinion": """
it was (about time|a mistake|a great success|nobody's fault|well worth it)
the (worst|best|hardest part) is (over|still to come|yet to be seen)
we should (wait|complain|try again|be patient|do it properly)
{GPE} is (not far|too far|lovely at this time of year|worth a visit)
that is (normal|unheard of|not a problem|how it always goes)
""",
    "gerund": """
(waiting|arguing|searching|worrying) for (hours|days|weeks)
(speaking|talking) to {SOMEBODY}
(asking|ringing|trusting) {ORG}
(thinking|sleeping) it over
(reading|checking|signing) the small print
going (home|back to {GPE}|there in person)
(doing|paying for|forgetting) everything else
""",
    "statement": """
(thank you|thanks) for <thanks_for>
(I hope|let's hope) <hope>
(do you|does anyone) know whether <opinion>?
(has anyone|have you) (heard from|spoken to|seen) {PERSON} (lately|since {DATE}|this week)?
(I cannot|nobody can) (find|remember|read|understand) the (number|name|password|address|date) (of {FIRM}|of {PERSON}|any more)
you can (reach|find|ring) {PERSON} (on {PHONE}|at {EMAIL}|at {LOC})
(my|her|his) new (number|mobile number|work number) is {PHONE}
(write to|contact) {EMAIL} (if you have any questions|for the details|before {DATE})
it was (a long|a quiet|a strange|a wonderful|an exhausting) (day|week|month|afternoon), <effect>
there is (nothing|not much|a lot) to (report|say|tell|complain about) (today|this week|from {GPE})
what (a|another) (day|week|mess|waste of time|lovely surprise)
(sorry|apologies) for the (late|short|confused) (reply|message|notice), <effect>
(some|most|a few) of us (think|believe|feel) that <opinion>
the (more|longer) I think about it, the (less|more) I (like|want|understand) it
(here|this) is what {PERSON} (said|wrote|suggested): <opinion>
(honestly|in the end|after all), <effect>
I (keep|kept) (thinking|talking|dreaming|reading) about (it|{GPE}|the old days|what {PERSON} said)
where (did|does|will) {PERSON} (live|work|go|park|stay) (now|these days|next)?
""",
    "thanks_for": """
your (help|patience|message|kind words|card|advice)
(coming|waiting|the flowers|the lift|everything)
the lovely (evening|present|letter|photographs) (last week|on {DATE}|in {GPE})
looking after (me|the house|{PERSON}|everything)
""",
    "hope": """
you are (well|better|having a good week|keeping warm)
{PERSON} (is feeling better|likes it|gets the job|arrives safely)
the (weather|train|plan|car) (holds|improves|is on time|works this time)
to see you (soon|on {DATE}|in {GPE}|before the winter)
""",
    "hedge": "I think, to be honest, as far as I know, apparently, if I remember rightly, from what I hear, in my opinion, "
    "I suppose, believe it or not, strictly speaking, for what it is worth, unless I am mistaken, frankly, as it happens, "
    "luckily, sadly, by the way, to tell the truth, in short, oddly enough",
    "greeting": "hi {FIRST}, hello {FIRST}, dear {FIRST}, good morning {FIRST}, morning {FIRST}, hey {FIRST}, hi all, hello everyone, "
    "dear all, evening all",
    "weekday": "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
    "number": "two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, fifteen, twenty, thirty",
    "hour": "eight, nine, ten, eleven, noon, half past two, three, four, five, six, half past seven, a quarter to nine, midnight",
    "job_simple": "driver, cleaner, accountant, gardener, cook, receptionist, clerk, engineer, porter, apprentice, designer, "
    "translator, welder, programmer, bookkeeper, secretary, security guard, electrician, courier, analyst",
}

RELATIVES: dict[str, str] = {
    "my brother": "he",
    "my sister": "she",
    "my mother": "she",
    "my father": "he",
    "my husband": "he",
    "my wife": "she",
    "my daughter": "she",
    "my son": "he",
    "my aunt": "she",
    "my uncle": "he",
    "my cousin": "he",
    "my neighbour": "she",
    "my flatmate": "he",
    "my boss": "she",
    "my grandfather": "he",
    "my niece": "she",
    "my best friend": "she",
    "a colleague of mine": "he",
    "an old friend": "she",
}
"""Subjects that name nobody, and the pronoun that stands for each."""

PLURAL_SUBJECTS: tuple[str, ...] = (
    "my parents",
    "the neighbours",
    "the others",
    "my colleagues",
    "both of them",
    "the children",
    "most people",
    "our friends",
    "they",
)

NAMELESS_FIRMS: tuple[str, ...] = (
    "the bank",
    "the council",
    "the agency",
    "the school",
    "the clinic",
    "the club",
    "head office",
    "the shop",
    "the university",
    "the hospital",
    "the company",
    "the insurance people",
    "a big firm",
    "the housing association",
)
"""What people say for an organisation that they do not name."""
