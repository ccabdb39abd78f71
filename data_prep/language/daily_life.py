"""Topics of daily life: health, family, travel, food, sport, arts, animals and gardens, shopping."""

DAILY_LIFE: dict[str, dict[str, str]] = {
    "health": {
        "sentence": """
<S> @see the <doctor> about %my <ailment> [<when>]
<S> @have an appointment with Dr {PERSON} [at {FIRM}] [<when>]
the <doctor> at {FIRM} @prescribe <medicine> [for %my <ailment>]
<S> @take <medicine> [<number> times a day] [for the <ailment>]
the test results from {FIRM} @be <adj_health> [so nobody is worried]
<S> @wait <number> hours at {FIRM} [because of the <ailment>]
{PERSON} @recover from a_ <adj_health> <ailment> [<when>]
<S> @break %my <body> [in {GPE}] [<when>]
the operation on my <body> is planned for {DATE}
<S> @feel <feeling> [since the <treatment>]
ring the surgery on {PHONE} if the <ailment> gets worse
<S> @give up <habit> [<when>]
<S> @start a_ <treatment> [with {SOMEBODY}] [<when>]
<S> @sleep badly [because of the <ailment>] [<when>]
the pharmacy on {LOC} @run out of <medicine>
<S> @book a_ <treatment> at {FIRM} [<when>]
my <body> @hurt [whenever I climb the stairs]
{PERSON} @donate blood in {GPE} [<when>]
the nurse @weigh the baby [and @find nothing wrong]
<S> @be allergic to <allergen> [and @carry <medicine> everywhere]
""",
        "doctor": "doctor, dentist, specialist, surgeon, physiotherapist, optician, nurse, midwife, cardiologist, pharmacist, "
        "consultant, chiropodist, psychologist",
        "ailment": "cough, migraine, rash, back pain, flu, fever, sprained ankle, asthma, insomnia, chest infection, toothache, "
        "high blood pressure, hay fever, stomach ache, eczema, sore throat, tinnitus, anaemia, arthritis, frozen shoulder",
        "medicine": "antibiotics, painkillers, tablets, eye drops, vitamins, an inhaler, ointment, cough syrup, insulin, "
        "sleeping pills, iron tablets, antihistamines, steroids, a nasal spray",
        "adj_health": "mild, severe, sudden, normal, chronic, rare, clear, better than expected, minor, nasty",
        "body": "knee, back, shoulder, left hand, ankle, wrist, neck, hip, toe, elbow, jaw, collarbone, thumb, right ear",
        "feeling": "tired, dizzy, much better, weak, hungry all the time, stronger, sick, sore, well, exhausted, calm, odd",
        "treatment": "course of physiotherapy, check-up, diet, scan, blood test, operation, vaccination, massage, eye test, "
        "course of treatment, filling, detox, X-ray",
        "habit": "smoking, sugar, coffee, wine, red meat, late nights, crisps, running, dairy, chocolate",
        "allergen": "nuts, pollen, penicillin, cats, shellfish, dust, gluten, strawberries, wasps, latex",
    },
    "family": {
        "sentence": """
<S> @visit {PERSON} in {GPE} [<when>]
<S> @celebrate %my birthday [with {SOMEBODY}] on {DATE}
{PERSON} and {PERSON} @get married [in {GPE}] [<when>]
the <child> @lose a_ <thing_child> [at {LOC}] [<when>]
<S> @look after the <child> [while {SOMEBODY} @be at work]
<S> @call {PERSON} on {PHONE} [every <weekday>]
{PERSON} was born in {GPE} on {DATE}
<S> @argue with {SOMEBODY} about the <quarrel> [<when>]
the <gathering> @take place at {LOC} [<when>]
<S> @invite {PERSON} to the <gathering> [<when>]
<S> @take the <child> to the <outing> [in {GPE}] [<when>]
{PERSON} @look <appearance> in the photographs [from the <gathering>]
the <child> @start school [<when>]
<S> @inherit a_ <heirloom> from {SOMEBODY}
<S> @name the baby after {PERSON} [<when>]
grandmother @tell the <child> stories about {GPE}
<S> @bake a_ <cake> for the <gathering> [<when>]
<S> @write to {SOMEBODY} at {EMAIL} [but nobody answers]
{PERSON} @miss the <gathering> [because of the <quarrel>]
<S> @find a_ <heirloom> in the attic [which belonged to {SOMEBODY}]
""",
        "child": "twins, baby, youngest, boys, girls, eldest, little one, grandchildren, toddler, children",
        "thing_child": "tooth, shoe, school bag, teddy bear, bus pass, front tooth, mitten, scooter, library book",
        "quarrel": "inheritance, washing-up, television, wedding list, old car, dog, Christmas plans, will, money, politics",
        "gathering": "wedding, funeral, christening, family reunion, birthday party, anniversary, Sunday lunch, barbecue, "
        "baby shower, engagement party, Christmas dinner, picnic",
        "outing": "zoo, cinema, swimming pool, dentist, playground, circus, museum, beach, pantomime, ice rink, farm, aquarium",
        "appearance": "happy, tired, old, very young, nervous, elegant, bored, just like grandmother, taller, thin",
        "heirloom": "clock, violin, silver spoon, quilt, diary, ring, portrait, stamp album, rocking chair, sewing machine, "
        "wedding dress, box of letters, pocket watch",
        "cake": "cake, lemon tart, batch of scones, fruit cake, tray of brownies, trifle, gingerbread house",
    },
    "travel": {
        "sentence": """
<S> @fly to {GPE} with {FIRM} [<when>]
<S> @spend <number> days in {GPE} [with {SOMEBODY}] [<when>]
the <transport> from {GPE} to {GPE} @be <adj_trip> [<when>]
<S> @book a_ <adj_trip> <lodging> in {GPE} [for {MONEY} a night]
<S> @miss the <transport> to {GPE} [because of the <obstacle>]
the <lodging> at {LOC} @have a_ <adj_trip> view [of the <landmark>]
<S> @lose %my <luggage> in {GPE} [and @ring {ORG} on {PHONE}]
{PERSON} @show us the <landmark> in {GPE} [<when>]
<S> @drive from {GPE} to {GPE} [in <number> hours] [<when>]
<S> @climb the <landmark> [near {GPE}] [<when>]
the booking was confirmed to {EMAIL} [on {DATE}]
{ORG} @cancel the <transport> [to {GPE}] [because of the <obstacle>]
<S> @meet {PERSON} at the <station> in {GPE} [<when>]
<S> @pack %my <luggage> [the night before]
the weather in {GPE} @be <weather> [all week]
<S> @hire a_ <vehicle> from {FIRM} [<when>]
<S> @photograph the <landmark> [at dawn] [<when>]
we walked along {LOC} [to the <landmark>]
<S> @leave {GPE} on {DATE} [and @come back a week later]
<S> @recommend the <lodging> [near the <station>] [to everyone]
""",
        "transport": "train, ferry, night bus, flight, coach, tram, sleeper, last bus, boat, connecting flight, taxi",
        "adj_trip": "cheap, crowded, delayed, beautiful, long, terrible, comfortable, scenic, early, noisy, half-empty, dreadful",
        "lodging": "hotel, guest house, campsite, hostel, cabin, holiday flat, room, bed and breakfast, tent, villa, lodge",
        "landmark": "castle, cathedral, lighthouse, harbour, old town, mountain, waterfall, ruins, bridge, palace, tower, lake, "
        "market, volcano, monastery, canal, cliffs, dunes",
        "luggage": "suitcase, passport, rucksack, camera, ticket, wallet, umbrella, glasses, guidebook, sleeping bag",
        "obstacle": "fog, strike, traffic, snow, wrong signs, floods, queue, storm, engine trouble, heatwave, volcanic ash",
        "station": "station, airport, harbour, bus stop, car park, border, ticket office, taxi rank, lost property office",
        "vehicle": "car, van, bicycle, motorbike, camper van, canoe, scooter, tandem, minibus, moped",
        "weather": "awful, glorious, wet, hot, windy, freezing, changeable, mild, foggy, perfect, humid, dull",
    },
    "food": {
        "sentence": """
<S> @cook <dish> for {PERSON} [<when>]
<S> @eat <dish> at {FIRM} [in {GPE}] [<when>]
the <dish> at {FIRM} @taste <taste> [this time]
<S> @order <dish> and <dish> [from the place on {LOC}]
<S> @burn the <dish> [because {PERSON} rang]
the recipe for <dish> @need <ingredient> and <ingredient>
<S> @book a table for <number> at {FIRM} [on {DATE}]
the kitchen of {FIRM} @close at <hour> [on <weekday>]
<S> @buy <ingredient> at the market in {GPE} [<when>]
{PERSON} @open a_ <eatery> on {LOC} [<when>]
<S> @run out of <ingredient> [half-way through the <dish>]
<S> @bake <baked> [with <ingredient>] [<when>]
the waiter @spill <drink> over {SOMEBODY}
<S> @drink <drink> with {SOMEBODY} [on the terrace] [<when>]
{ORG} @win a prize for its <dish> [<when>]
reserve by ringing {PHONE} [and ask for {PERSON}]
<S> @add <ingredient> to the <dish> [at the last moment]
nothing beats <dish> with <ingredient> [on a cold day]
<S> @swap recipes with {SOMEBODY} [by email at {EMAIL}]
the <eatery> in {GPE} @serve the best <dish> [I know]
""",
        "dish": "lentil soup, fish pie, lasagne, curry, roast lamb, risotto, pancakes, mushroom stew, dumplings, paella, omelette, "
        "shepherd's pie, noodles, tacos, stuffed peppers, goulash, onion tart, chilli, falafel, pea soup, grilled mackerel",
        "taste": "wonderful, salty, bland, burnt, far too sweet, fresh, odd, delicious, watery, spicy, bitter, like home",
        "ingredient": "garlic, saffron, butter, cinnamon, lemons, rice, coriander, tomatoes, cream, ginger, chestnuts, honey, "
        "basil, aubergines, leeks, walnuts, goat's cheese, paprika, yeast, beetroot, capers, spinach, anchovies",
        "baked": "bread, scones, a sponge cake, rye bread, apple pie, flapjacks, biscuits, pizza, muffins, shortbread",
        "drink": "red wine, coffee, cider, lemonade, green tea, beer, hot chocolate, elderflower cordial, tomato juice, gin",
        "eatery": "cafe, bakery, restaurant, food stall, pub, tea room, sandwich shop, ice-cream parlour, bistro",
    },
    "sport": {
        "sentence": """
<S> @play <game> against {SOMEBODY} [<when>]
<S> @run a_ <race> in {GPE} [<when>]
{ORG} @beat {GPE} by <number> points [<when>]
{PERSON} @score <number> times in the <match> [against {GPE}]
<S> @train with {SOMEBODY} [every <weekday>] [at {LOC}]
<S> @watch the <match> at {FIRM} [<when>]
<S> @injure %my <limb> during the <match> [<when>]
the <match> @end in a_ <result> [after extra time]
<S> @join the <game> club in {GPE} [<when>]
tickets for the <match> @cost {MONEY} [each]
the coach, {PERSON}, @want more <quality> [from everyone]
<S> @win the <race> [by a second] [<when>]
<S> @swim <number> lengths [before breakfast] [<when>]
the referee @send off {PERSON} [in the first minute]
{ORG} @sign {PERSON} for {MONEY} [<when>]
<S> @cycle from {GPE} to {GPE} [in <number> hours] [<when>]
the pitch on {LOC} @be <pitch> [after the rain]
<S> @buy <gear> [from {FIRM}] [for the <race>]
the <match> on {DATE} @be postponed
who wants to play <game> on <weekday> can text {PHONE}
""",
        "game": "tennis, football, chess, badminton, cricket, squash, hockey, rugby, basketball, darts, golf, table tennis, netball, "
        "bowls, volleyball, snooker",
        "race": "marathon, half marathon, fun run, ten-kilometre race, triathlon, relay, obstacle course, hill race",
        "match": "match, final, cup tie, league game, semi-final, friendly, tournament, play-off, derby, first leg",
        "limb": "knee, ankle, shoulder, hamstring, wrist, calf, elbow, back, groin, Achilles tendon",
        "result": "draw, defeat, surprise win, row, shoot-out, stalemate, landslide, fight",
        "quality": "effort, speed, discipline, practice, patience, courage, concentration, stamina, teamwork",
        "pitch": "flooded, frozen, muddy, in perfect order, unplayable, slippery, hard, closed",
        "gear": "running shoes, goggles, a racket, shin pads, cycling shorts, a helmet, boots, a wetsuit, gloves, golf balls",
    },
    "arts": {
        "sentence": """
<S> @see the new <show> by {PERSON} [in {GPE}] [<when>]
<S> @play the <instrument> in {ORG} [<when>]
{PERSON} @write a_ <adj_art> <work_art> about {GPE} [<when>]
the <show> at {FIRM} @run until {DATE}
<S> @read the <adj_art> <work_art> by {PERSON} [in one night]
<S> @rehearse the <piece> with {SOMEBODY} [<when>]
{ORG} @exhibit the <work_art> of {PERSON} [<when>]
the review @call the <show> <adj_art> [and too long]
<S> @take <instrument> lessons from {SOMEBODY} [on <weekday>]
<S> @sing in the choir of {FIRM} [in {GPE}]
tickets for the <show> can be had on {PHONE} [for {MONEY}]
<S> @paint a_ <adj_art> portrait of {PERSON} [<when>]
{PERSON} @win a prize for the <work_art> [<when>]
<S> @fall asleep during the <piece> [<when>]
the <work_art> @sell for {MONEY} [in {GPE}]
<S> @photograph {PERSON} for the <work_art> [<when>]
send your poems to {EMAIL} [before {DATE}]
<S> @lend {PERSON} the <work_art> [about {GPE}]
the gallery on {LOC} @show <adj_art> pictures [of {GPE}]
<S> @tune the <instrument> [before the <show>]
""",
        "show": "play, film, musical, opera, exhibition, concert, ballet, documentary, one-man show, puppet show, thriller, comedy",
        "instrument": "violin, piano, trumpet, cello, guitar, flute, drums, clarinet, accordion, harp, oboe, double bass",
        "adj_art": "brilliant, strange, moving, unfinished, funny, gloomy, short, famous, abstract, clumsy, tender, forgotten, huge",
        "work_art": "novel, poem, painting, sculpture, collection of stories, song, biography, film, photograph, play, sketch, memoir",
        "piece": "symphony, overture, second act, slow movement, carol, string quartet, finale, requiem, waltz, encore",
    },
    "animals": {
        "sentence": """
<S> @walk the <pet> along {LOC} [<when>]
the <pet> @run away [near {LOC}] [<when>]
<S> @take the <pet> to {ORG} [because of its <pet_trouble>]
<S> @adopt a_ <adj_pet> <pet> from a shelter in {GPE} [<when>]
<S> @plant <plant> [in the <bed>] [<when>]
the <plant> in the <bed> @flower early [this year]
slugs @eat the <plant> [that {PERSON} gave me]
<S> @prune the <plant> with {SOMEBODY} [<when>]
if you find a_ <adj_pet> <pet>, ring {SOMEBODY} on {PHONE}
<S> @feed the <pet> [while {SOMEBODY} @be in {GPE}]
the <adj_pet> <pet> @bite {PERSON} [in the <limb_pet>]
<S> @dig up the <bed> [and @find an old coin]
the vet, {PERSON}, @look at the <pet_trouble> [<when>]
<S> @order <plant> seeds from {FIRM} [<when>]
<S> @see a_ <wild> near {GPE} [<when>]
the <pet> @sleep on the sofa [all day]
<S> @win first prize for %my <plant> [in {GPE}] [<when>]
{PERSON} @keep <number> hens behind the <bed>
a_ <wild> @nest in the <bed> [at {LOC}]
frost @kill the <plant> [in {GPE}] [<when>]
""",
        "pet": "dog, cat, rabbit, parrot, hamster, pony, tortoise, terrier, spaniel, kitten, goat, budgie, ferret, guinea pig",
        "adj_pet": "black, elderly, three-legged, nervous, friendly, ginger, noisy, fat, half-blind, greedy, clever, brown",
        "pet_trouble": "cough, limp, fleas, bad teeth, bald patch, swollen paw, weight, runny nose, broken claw",
        "plant": "roses, tomatoes, runner beans, tulips, dahlias, apple tree, lavender, courgettes, sweet peas, pumpkins, potatoes, "
        "hydrangea, strawberries, sunflowers, bluebells, rhubarb, wisteria",
        "bed": "front garden, greenhouse, allotment, window box, vegetable patch, orchard, flower bed, hedge, pond, old shed",
        "limb_pet": "leg, hand, finger, nose, ankle, thumb",
        "wild": "kingfisher, fox, hedgehog, deer, heron, badger, barn owl, red squirrel, otter, woodpecker, grass snake, bat",
    },
    "shopping": {
        "sentence": """
<S> @buy a_ {PRODUCT} from {FIRM} [for {MONEY}] [<when>]
the {PRODUCT} @arrive <condition> [<when>]
<S> @return the <goods> to {ORG} [because it was <condition>]
{ORG} @deliver the <goods> to {LOC} [<when>]
<S> @wait for the <goods> from {FIRM} [since {DATE}]
the order was confirmed to {EMAIL} [but the <goods> never came]
<S> @compare the {PRODUCT} with the {PRODUCT} [<when>]
the shop on {LOC} @sell <adj_goods> <goods> [on <weekday>]
<S> @find a_ <adj_goods> <goods> in {GPE} [<when>]
customer service at {FIRM} can be reached on {PHONE}
<S> @give {PERSON} a_ <adj_goods> <goods> [for %my birthday]
<S> @pay {MONEY} for the <goods> [which is daylight robbery]
the guarantee on the {PRODUCT} @end on {DATE}
<S> @sell the <adj_goods> <goods> to {SOMEBODY} [<when>]
the sale at {FIRM} @start on {DATE}
<S> @wrap the <goods> for {PERSON} [<when>]
{PERSON} @review the {PRODUCT} [and @call it <adj_goods>]
<S> @order the wrong <goods> [twice] [<when>]
<S> @queue for <number> hours outside {FIRM} [to get the {PRODUCT}]
the refund of {MONEY} @arrive [<when>]
""",
        "goods": "coat, lamp, kettle, bookcase, carpet, raincoat, toaster, mattress, desk, vase, jumper, pair of boots, tablecloth, "
        "drill, toy train, teapot, armchair, blanket, frying pan, mirror, suit, handbag, scarf, bicycle pump",
        "adj_goods": "second-hand, green, cheap, leather, broken, woollen, antique, overpriced, handmade, heavy, striped, useful",
        "condition": "damaged, late, the wrong size, without its plug, broken, unopened, in three parcels, scratched, too small",
    },
}
