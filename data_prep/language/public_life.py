"""Topics of public life: work, money, law, housing, technology, learning and the neighbourhood."""

PUBLIC_LIFE: dict[str, dict[str, str]] = {
    "work": {
        "sentence": """
<S> @send the <doc> to {SOMEBODY} [at {FIRM}] [<when>]
<S> @discuss the <project> with {SOMEBODY} and the <team> team [<when>]
<S> @finish the <adj_work> <doc> for {FIRM} [<when>]
{PERSON} from {FIRM} @ask for the <doc> [and a_ <adj_work> <doc>] [<when>]
the <meeting> with {FIRM} @start at <hour> [in the <room>] [<when>]
<S> @move the <meeting> to {DATE} because {PERSON} @be away
please send the <doc> to {EMAIL} before the <meeting> [on {DATE}]
could you forward the <doc> to {SOMEBODY} and copy {EMAIL} [in]?
^pl the <team> people @review the <project> [together with {FIRM}] [<when>]
<S> @apply for the post of {JOB} at {FIRM} [<when>]
{PERSON} @join {ORG} as a_ {JOB} [<when>]
<S> @work on a_ <adj_work> <project> [with {SOMEBODY}] [<when>]
the <doc> for the <project> @need more <abstract_work> [before the <meeting>]
<S> @present the <adj_work> figures to the <team> department [<when>]
<S> @take notes at the <meeting> and @circulate the <doc> [afterwards]
if anyone asks about the <project>, tell them to ring {SOMEBODY} on {PHONE}
<S> @hire a <job_simple> [for the <project>] [<when>]
nobody in the <team> team has read the <doc> [that {PERSON} wrote]
the contract with {FIRM} @cover the <project> [until {DATE}]
<S> @train the new <job_simple> [in {GPE}] [<when>]
my manager {PERSON} @approve the <doc> [without reading it]
we lost the <adj_work> <doc> [and had to write it again from memory]
""",
        "doc": "invoice, report, proposal, budget, timesheet, contract, minutes, agenda, presentation, forecast, quote, "
        "summary, draft, brief, memo, spreadsheet, handover, purchase order, status update, risk register, press release, "
        "job advert, tender, audit, survey, roadmap, delivery note, cost estimate, staff handbook, training plan",
        "project": "launch, merger, office move, website redesign, pricing review, warehouse project, customer survey, "
        "product trial, annual review, recruitment drive, training scheme, rebranding, expansion, pilot, tender, audit, "
        "supplier contract, reorganisation, quality programme, sales campaign, payroll migration, safety inspection",
        "adj_work": "final, quarterly, annual, urgent, revised, confidential, internal, preliminary, detailed, monthly, "
        "signed, missing, joint, overdue, outstanding, weekly, ambitious, tedious, unfinished, promising",
        "team": "sales, finance, design, legal, support, marketing, operations, research, payroll, logistics, planning, "
        "purchasing, quality, communications, security, maintenance",
        "meeting": "meeting, review, workshop, interview, conference call, briefing, appraisal, board meeting, interview, "
        "site visit, kick-off, presentation, negotiation, hearing, training day, induction",
        "room": "main hall, second meeting room, canteen, old office, annexe, boardroom, library, basement",
        "abstract_work": "detail, evidence, work, figures, attention, time, colour, structure, care, examples",
    },
    "finance": {
        "sentence": """
<S> @transfer {MONEY} to {ORG} [<when>]
{ORG} @charge <me_or_us> {MONEY} for a_ <fee> [<when>]
<S> @owe {PERSON} {MONEY} for the <purchase>
the <adj_money> <account> at {FIRM} @pay less than expected [this year]
<S> @open a_ <adj_money> <account> with {FIRM} [in {GPE}] [<when>]
<S> @pay the <bill> [of {MONEY}] [<when>]
the <bill> @come to {MONEY} [which is more than last year]
<S> @close the <account> and @move the <asset> to {ORG}
{PERSON} at {FIRM} @advise <me_or_us> to keep the <asset> [a little longer]
<S> @sell the <asset> [for {MONEY}] [<when>]
if the <bill> is wrong, ring {ORG} on {PHONE}
the <fee> @be due on {DATE}
<S> @borrow {MONEY} from {SOMEBODY} to cover the <bill>
<S> @check the <adj_money> statement [line by line] [and @find two mistakes]
interest on the <account> @rise again [<when>]
<S> @send the tax return to {EMAIL} [<when>]
<S> @save for a_ <purchase> [and @put {MONEY} aside every month]
{ORG} @refuse the <adj_money> loan [without a_ explanation]
we agreed to split the <bill> three ways [with {SOMEBODY}]
prices @go up faster than wages [in {GPE}]
""",
        "fee": "fee, late charge, currency fee, overdraft, monthly fee, card replacement, administration charge, deposit, "
        "cancellation fee, subscription, service charge, penalty, premium",
        "adj_money": "joint, monthly, personal, fixed-rate, old, new, secured, student, small, basic, interest-free, "
        "long-term, annual, dormant",
        "account": "account, savings account, pension, credit card, mortgage, loan, insurance policy, current account, "
        "investment plan, trust fund, standing order",
        "asset": "shares, bonds, savings, pension, flat, car, gold, fund, units, stock, inheritance",
        "bill": "gas bill, electricity bill, phone bill, council tax, water bill, insurance, restaurant bill, tax bill, "
        "repair bill, vet's bill, rent, heating bill, garage bill, dentist's bill",
        "purchase": "new boiler, bicycle, holiday, sofa, second-hand car, washing machine, laptop, wedding, extension, piano, "
        "kitchen, set of tyres, camera, flight, tent",
        "me_or_us": "me, us, both of us, my parents, the two of us",
    },
    "legal": {
        "sentence": """
<S> @sign the <deed> at {FIRM} [<when>]
{PERSON}, a_ <lawyer> at {FIRM}, @read the <deed> [twice]
the <court> in {GPE} @hear the case [against {FIRM}] [<when>]
<S> @sue {ORG} over the <dispute>
the <deed> @name {PERSON} as <role>
<S> @receive a_ <adj_law> letter from {FIRM} [about the <dispute>]
the deadline for the <filing> @be {DATE}
<S> @submit the <filing> to the <court> [<when>]
{PERSON} @witness the signature [on the <deed>]
my <lawyer> {PERSON} can be reached on {PHONE} [until <hour>]
the <court> @dismiss the claim [for lack of <evidence>]
<S> @settle the <dispute> for {MONEY} [<when>]
under the <deed>, {ORG} must give <number> weeks' notice
<S> @send the <adj_law> copies to {EMAIL} [and @keep the originals]
neither side wants the <adj_law> terms [that {PERSON} proposed]
<S> @report the <dispute> to the police in {GPE} [<when>]
{ORG} @breach the <deed> [by not delivering the <evidence>]
the judge @ask for more <evidence> [before <weekday>]
<S> @inherit the house at {LOC} [from {SOMEBODY}]
""",
        "deed": "lease, will, deed, contract, agreement, affidavit, settlement, power of attorney, tenancy agreement, "
        "statement, licence, non-disclosure agreement, guarantee, partnership agreement, consent form",
        "lawyer": "solicitor, barrister, notary, legal adviser, paralegal, partner, clerk, mediator",
        "court": "county court, tribunal, high court, magistrate, appeal court, employment tribunal, family court",
        "dispute": "boundary wall, unpaid wages, broken fence, accident, noise, missing deposit, faulty roof, parking fine, "
        "dismissal, late delivery, stolen bicycle, water damage, forged signature",
        "role": "executor, guardian, tenant, director, beneficiary, guarantor, trustee, witness, owner",
        "adj_law": "certified, sealed, threatening, formal, revised, signed, confidential, polite, second, final, written",
        "filing": "appeal, defence, claim, application, objection, witness statement, complaint, petition, evidence",
        "evidence": "evidence, photographs, receipts, records, witnesses, emails, time, documents, measurements, proof",
    },
    "housing": {
        "sentence": """
<S> @rent a_ <adj_home> <home> at {LOC} [from {FIRM}]
<S> @move to {LOC} [in {GPE}] [<when>]
the <home> at {LOC} @have <number> rooms and a_ <adj_home> <part>
the landlord {PERSON} @raise the rent [by {MONEY}] [<when>]
{ORG} @repair the <part> [<when>]
<S> @paint the <part> <colour> [<when>]
water @leak through the <part> [into the <part>] [whenever it rains]
<S> @view a_ <adj_home> <home> near {GPE} [with {SOMEBODY}] [<when>]
the <home> next to {LOC} @be for sale [at {MONEY}]
<S> @buy the <adj_home> <home> from {SOMEBODY} [<when>]
call {ORG} on {PHONE} if the <part> breaks again
our new address is {LOC}, {GPE} [so please update the list]
<S> @ask the <tradesman> to look at the <part> [<when>]
the neighbours at {LOC} @complain about the <nuisance> [again]
<S> @replace the <part> [with a_ <adj_home> one] [<when>]
the keys @be with {SOMEBODY} at {LOC}
<S> @insulate the <part> [and @save a fortune]
planning permission for the <part> @arrive [<when>]
the survey @show damp in the <part> [but nothing serious]
<S> @swap flats with {SOMEBODY} [for the summer]
the lease on the <home> @end on {DATE}
""",
        "home": "flat, house, cottage, bungalow, studio, terraced house, maisonette, farmhouse, bedsit, loft, garage, barn",
        "adj_home": "tiny, bright, damp, spacious, Victorian, furnished, cheap, modern, draughty, quiet, shabby, semi-detached, "
        "renovated, gloomy, cosy, wooden, second-hand, double-glazed",
        "part": "kitchen, roof, boiler, bathroom, hall, staircase, cellar, attic, garden wall, chimney, front door, "
        "bedroom ceiling, radiator, porch, gutter, window frame, balcony, fence, floor, conservatory, driveway",
        "tradesman": "plumber, electrician, builder, carpenter, roofer, surveyor, locksmith, decorator, glazier, caretaker",
        "nuisance": "noise, smell, bins, parking, dog, drums, bonfire, party, rubbish, hedge, scaffolding, pigeons",
        "colour": "white, pale blue, dark green, yellow, grey, cream, terracotta, orange, lavender, black, turquoise, red",
    },
    "technology": {
        "sentence": """
<S> @install the <software> on the <device> [<when>]
the <device> from {FIRM} @stop working [after the <update>]
<S> @replace the <device> with a_ {PRODUCT} [<when>]
the {PRODUCT} @have a_ <adj_tech> <component> [but a weak <component>]
<S> @lose all <data> [because the <device> crashed]
{PERSON} at {FIRM} @fix the <bug> [in less than <number> hours]
<S> @back up the <data> [to the <device>] [<when>]
the password for the <software> was sent to {EMAIL}
<S> @write a_ <adj_tech> script that @sort the <data>
{ORG} @release the {PRODUCT} [<when>]
the <update> @break the <software> [for everyone in the office]
<S> @return the {PRODUCT} to {ORG} [because the <component> was faulty]
the help desk @answer on {PHONE} [from <hour>]
<S> @delete the <adj_tech> <data> [by accident] [<when>]
nobody knows how the <software> works [since {PERSON} left {ORG}]
<S> @test the <adj_tech> version of the <software> [with {SOMEBODY}]
the {PRODUCT} costs {MONEY} [which is too much for a_ <device>]
<S> @report the <bug> to {ORG} [<when>]
the <component> of my {PRODUCT} @get hot [after <number> minutes]
<S> @connect the <device> to the <device> [with a_ <adj_tech> cable]
""",
        "software": "database, browser, mail server, spreadsheet macro, backup program, calendar, operating system, app, "
        "payroll system, editor, search engine, firewall, compiler, printer driver, ticket system, video player",
        "device": "laptop, printer, router, phone, server, scanner, tablet, projector, keyboard, monitor, hard disk, camera, "
        "doorbell, thermostat, headset, smart speaker, till, drone",
        "update": "update, power cut, upgrade, storm, migration, patch, restart, reset, office move",
        "adj_tech": "wireless, faulty, encrypted, slow, new, open-source, experimental, reliable, clumsy, clever, outdated, "
        "spare, stable, automatic, temporary",
        "component": "battery, screen, fan, microphone, processor, charger, keyboard, memory card, lens, hinge, antenna",
        "data": "photos, files, records, backups, log files, messages, customer lists, recordings, drawings, invoices, accounts",
        "bug": "bug, error, login problem, memory leak, crash, broken link, security hole, sync problem, display fault",
    },
    "education": {
        "sentence": """
<S> @study <subject_school> at {FIRM} [in {GPE}]
{PERSON} @teach <subject_school> at {FIRM} [<when>]
<S> @hand in the <assignment> [on <subject_school>] [<when>]
the <exam> in <subject_school> @take place on {DATE}
<S> @pass the <exam> [with a better mark than {PERSON}]
<S> @borrow a_ <adj_book> book about <subject_school> [from the library in {GPE}]
the <school_staff>, {PERSON}, @explain <subject_school> [very clearly]
<S> @enrol on a_ <adj_book> course at {FIRM} [<when>]
applications for the <grant> go to {EMAIL} [before {DATE}]
<S> @fail the <exam> [twice] [by <number> points]
^pl the pupils @visit {GPE} with {SOMEBODY} [<when>]
<S> @give a talk about <subject_school> [at {FIRM}] [<when>]
{ORG} @offer a_ <grant> of {MONEY} [for <subject_school>]
the parents' evening @be on {DATE} [at <hour>]
<S> @revise <subject_school> with {SOMEBODY} [in the library]
the <assignment> @have to be <number> pages long
<S> @graduate from {FIRM} [with a degree in <subject_school>]
<S> @learn <language> [from {SOMEBODY}] [<when>]
the <school_staff> @cancel the lecture [on <subject_school>]
""",
        "subject_school": "chemistry, history, mathematics, biology, geography, philosophy, statistics, economics, physics, "
        "music theory, linguistics, accounting, law, nursing, architecture, geology, politics, sociology, astronomy, design",
        "assignment": "essay, dissertation, coursework, lab report, book review, presentation, portfolio, thesis, exercise",
        "exam": "exam, oral exam, entrance test, final, resit, mock exam, driving theory test, aptitude test, quiz",
        "adj_book": "short, thick, second-hand, famous, difficult, illustrated, evening, beginners', advanced, boring, useful",
        "school_staff": "lecturer, head teacher, tutor, professor, examiner, supervisor, librarian, teaching assistant",
        "grant": "scholarship, grant, bursary, prize, travel grant, fellowship, student loan",
        "language": "Spanish, Welsh, Polish, German, Arabic, Italian, Portuguese, Greek, Japanese, sign language, Hindi",
    },
    "community": {
        "sentence": """
<S> @volunteer at the <charity> in {GPE} [<when>]
<S> @raise {MONEY} for the <charity> [<when>]
councillor {PERSON} @promise to <civic> [in {GPE}]
the council of {GPE} @decide to <civic> [<when>]
{ORG} @sponsor the <event> [in {GPE}] [<when>]
<S> @sign the petition against the <plan_civic> [near {LOC}]
the <event> @take place in {GPE} on {DATE}
<S> @organise the <event> [with {SOMEBODY}] [<when>]
^pl about <number> hundred people @attend the <event>
<S> @vote for {PERSON} [<when>]
whoever wants to help at the <event> can write to {EMAIL}
<S> @hand out leaflets [about the <plan_civic>] [in {GPE}]
the <charity> on {LOC} @close [<when>]
<S> @complain to {SOMEBODY} about the <plan_civic>
{PERSON} @speak at the <event> [about the <plan_civic>]
<S> @donate <donation> to the <charity> [<when>]
the road through {GPE} @be closed because of the <event>
<S> @join the committee of the <charity> [<when>]
the local paper @print a letter from {SOMEBODY} [about the <plan_civic>]
""",
        "charity": "food bank, hospice, library, youth club, animal shelter, night shelter, museum, charity shop, scout group, "
        "village hall, lifeboat station, community garden, playgroup, repair cafe, allotment society",
        "event": "fair, festival, carnival, market, quiz night, concert, jumble sale, street party, marathon, fireworks, "
        "harvest supper, bonfire, open day, parade, cake sale, beach clean",
        "civic": "mend the pavement, build a playground, close the swimming pool, cut the bus service, plant more trees, "
        "widen the road, reopen the station, sell the town hall, fix the streetlights, ban cars, clean the river, save the library",
        "plan_civic": "bypass, car park, supermarket, wind farm, housing estate, airport, incinerator, one-way system, stadium, "
        "quarry, pylons, speed limit, library closure, bus cuts",
        "donation": "old clothes, blankets, toys, tins, books, furniture, a wheelchair, a piano, coats, tools, a whole freezer",
    },
}
