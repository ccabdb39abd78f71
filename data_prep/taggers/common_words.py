"""Common English words that often begin a sentence, where a capital letter does not mean a name."""

_OPENERS = """
accordingly actually additionally admittedly afterwards again ago ah all alright also alternatively
altogether amazing anyhow anyway apart apologies apparently approximately arguably ask assuming based
basically believe besides better bring briefly but buy by bye call can certainly check cheers choose
clearly click close come compare consequently consider considering contact conversely could currently
daily dear definitely depending despite did do does due during earlier early easily either especially
essentially eventually ever evidently exactly except excellent fair feel finally find fine first firstly
following for forget fortunately frankly from full fully funny further furthermore generally get give
given go goes going good goodbye got gradually great guess had hardly has have having hello hence here
hey hi honestly hopefully how however if imagine immediately in incidentally including increasingly
indeed initially instead interestingly is it its just keep kindly know lastly late lately later learn
leave less let lets likely likewise listen literally look looking lots luckily mainly make makes many
may maybe meanwhile merely might more moreover most mostly much must naturally nearly need nevertheless
never next nice no nobody none nonetheless nope normally not note nothing notice notwithstanding now
obviously occasionally of off often oh ok okay on once one only oops open or ordinarily originally
otherwise ought ouch over overall partly perhaps personally please plus possibly presumably previously
probably provided put quickly quite rather read really recently regarding regardless remember remind
respectively right sadly said same say says see seems seen seldom send seriously several shall she
should show similarly simply since so some somehow someone something sometimes somewhere soon sorry
specifically start started still stop strangely such suddenly suppose sure surely surprisingly take
taken talk tell thank thanks that then there thereafter therefore thereby these they think this those
though through thus to today together tomorrow tonight too top traditionally truly try trying turn turns
typically ultimately under understand understood undoubtedly unfortunately unless unlike until up upon
use used using usually very via visit wait want was watch we welcome well were what whatever when
whenever where whereas wherever whether which while whilst who whoever whole whom whose why will wish
with within without wonder wonderful would wow write yeah yes yesterday yet you monday tuesday wednesday
thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun
"""
OPENERS = frozenset(_OPENERS.split())
"""Adverbs, function words, greetings, imperatives and weekdays: no part of a name at the start of a sentence."""

_NOUNS = """
access accidents accounts action advice age air amount analysts animals answer answers anything apples
applications appointments area army article artists attempts attendance aunt authorities average babies
back banks beds beer bills birds birthday blood boats body books boys bread breakfast brothers buildings
bus buses business cake cars cases cash cats chairs change changes chapter charges cheap cheese children
choice cities citizens classes clients clothes coffee cold colleagues colour comments companies
competition complaints computers concerns conditions construction consumers contracts cooking costs
councillors countries couples courts cows crime critics crops crowds customers damage dance darkness
data date daughter dealers death debt decisions defence delays delivery demand dentists design details
dinner directors discussions doctors documents dogs doors drinking drivers driving drugs early earnings
eating economists education effort eggs elections electricity emergency emissions employees employers
employment energy engineers entry equipment errors events evidence exams exercise experience experts
exports eyes factories failure families farmers fear feedback fees few fewer fields figures files films
finance fire fish flats flights floods flour flowers folk food football forecasts foreign forests four
five fresh friends fruit frost fuel funding funds furniture games gardens gas girls gold government
grandfather grandmother grass ground groups growth guests guidance guns half hands happiness happy
health heavy help high history holidays homes horses hospitals hotels hours house houses housing ice
images imports income inflation information injuries insects inspectors insurance interest investigators
investment investors issues items jobs journalists judges keys kids kitchen knowledge labour land
language large laws lawyers leaders leading leaves lessons letters life light lights line little living
loans local long love low lunch machines mail major management managers markets marriage maths matters
meals meat meetings members memories men messages middle milk million millions minutes missing mistakes
modern money months mornings mortgage mother mothers mountains movies mum music my names nations nature
neighbours network news newspapers nine noise notes number numbers nurses observers offers offices
officers officials oil old opinion opponents orders output owners pages pain paint paper papers parents
parking part parties partners parts passengers patience patients payment payments peace pensions people
performance permission personal photos pictures plans plants players police policy politicians politics
poor post power prayer preparations press pressure prices prisoners private problems producers
production products profit profits progress property protesters public pupils quality questions rain
rates reading reasons receipts recipes records red refunds regulators relations rent repairs reports
researchers residents results retailers revenue rice roads rooms rubbish rules running salaries sales
salt schools science scientists scores second security sellers senior services seven shares shareholders
ships shoes shops short sickness silence sister sisters six sleep slugs small smoke smoking snow
soldiers solicitors songs sources space speakers sport staff stations stocks stones stories storms
streets strong students studies sugar summer supplies support surveys swimming talks taxes tax tea
teachers teams technology temperatures ten tenants tension terms tests text textbooks thieves things
thousands three tickets time times tips tourists towns trade traders traffic training trains travel
travellers treatment trees troops trouble trust twelve twenty two uncle unemployment unions users
vegetables victims video views villagers villages violence visitors volunteers voters wages walking
walls war water weather weeks white winds wine winter witnesses wives women wood words work workers
working writers writing years young
"""
COMMON_NOUNS = frozenset(_NOUNS.split())
"""Words that are no name when they stand alone and capitalised at a sentence's start."""
