"""The demo's prompts: a seeded generator of varied short instructions for a very small model.

``python -m flows.demo_prompts`` rewrites ``demo_prompts.jsonl`` beside this file, in the schema of
open-perfectblend with the human turn only. Each kind of prompt has its own random stream, so that
adding one leaves the prompts of the others as they are. A topic is used once, or in prompts that
differ in more than a number: a drafter that is measured on held-out prompts must not have been
trained on nearly the same ones.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEMO_PROMPTS_PATH = Path(__file__).with_name("demo_prompts.jsonl")
SEED = 20


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", " ").split(";")]


def _lines(text: str) -> list[str]:
    """One entry a line; a bar stands for an empty line inside an entry."""
    return [line.replace(" | ", "\n\n") for line in text.strip().splitlines()]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


QUESTIONS = _lines("""
Why is the sky blue?
Why do leaves change colour in autumn?
How do bees make honey?
What causes the tides?
Why do we have leap years?
Who was Marie Curie, and what is she known for?
What is the largest ocean on Earth, and how deep is it?
How does a refrigerator keep food cold?
Why is sea water salty?
What do plants need to grow?
How long does it take the Earth to go around the Sun?
What is the difference between weather and climate?
Why do cats purr?
Which planets in our solar system have rings?
How does a compass know where north is?
What was the Silk Road?
What happens to water when it boils?
Why did the Roman Empire fall?
What does the heart do?
How are mountains formed?
Who painted the Mona Lisa, and why is it famous?
What is the function of red blood cells?
Why do birds migrate?
What is the currency of Japan, and how is it used?
How do vaccines protect us from disease?
What are the three states of matter?
Why does bread rise?
What is the Great Barrier Reef?
How do fish breathe under water?
Who wrote Romeo and Juliet, and what is the play about?
What makes a rainbow appear?
Why is the Amazon rainforest important?
How does a microwave oven heat food?
What is the purpose of a parliament?
Why do we dream?
What are fossils, and how do they form?
How did people tell the time before clocks?
What is the capital of Australia, and what is the city like?
Why does ice float on water?
What is the role of the United Nations?
How do airplanes stay in the air?
What are the main ingredients of a pizza?
Why do some animals hibernate?
What is the Great Wall of China, and why was it built?
How is glass made?
What does a historian do?
Why do onions make us cry?
What was the first animal in space?
How do spiders build their webs?
What are the benefits of walking every day?
Why do we need sleep?
How does soap clean our hands?
What is the difference between a lake and a sea?
Who invented the telephone?
Why is the Moon sometimes visible during the day?
What is the tallest mountain in Africa?
How do trees help clean the air?
What are vitamins, and why do we need them?
How do submarines sink and rise again?
What is the Eiffel Tower made of?
Why do metals rust?
What is a solar eclipse?
How do volcanoes erupt?
What languages are spoken in Switzerland?
Why are flamingos pink?
How does the human eye see colours?
What is the oldest university in Europe?
What were the causes of the First World War?
How do magnets work?
Why does the Moon have phases?
What is the job of a software tester?
How do camels survive in the desert?
What is inflation, in simple words?
Who was the first person to walk on the Moon?
Why do we celebrate New Year?
What is a balanced diet?
How does recycling paper work?
What is the difference between a virus and a bacterium?
Why do stars twinkle?
How is chocolate made?
What was life like in a medieval village?
Which gases make up the air around us?
Why do earthquakes happen?
How do owls hunt at night?
What is jazz music, and where did it come from?
""")

CONCEPTS = _items("""
photosynthesis; gravity; electricity; the water cycle; evolution; friction; democracy; the food chain; sound waves;
black holes; probability; supply and demand; the immune system; climate change; pollination; digestion; machine
learning; the internet; encryption; an atom; DNA; plate tectonics; a budget; interest on a loan; fractions; negative
numbers; the Pythagorean theorem; prime numbers; a database; an algorithm; computer memory; cloud computing;
open-source software; renewable energy; a solar panel; a battery; erosion; the ozone layer; the greenhouse effect;
herd behaviour; the stock market; taxes; a constitution; the scientific method; peer review; a hypothesis; the nervous
system; blood pressure; muscle growth; habit formation; empathy; active listening; body language; the placebo effect;
a metaphor; irony; a haiku; perspective in painting; rhythm in music; a symphony orchestra; stage lighting; camera
exposure; compound words; grammar; the printing press; the Industrial Revolution; archaeology; a census; time zones;
latitude and longitude; ocean currents; coral reefs; camouflage; composting; fermentation; caramelisation
""")

EXPLAIN_PHRASINGS = _lines("""
Explain {x} to a ten-year-old child.
Give me a short, clear explanation of {x}, with one example from everyday life.
I have never understood {x}. Can you explain it in simple terms?
What is the main idea behind {x}? Answer in one paragraph.
Write a short introduction to {x} for a school newsletter.
Explain {x} using an analogy with cooking or sport.
What are the three most important things to know about {x}?
Pretend you are a patient teacher. How would you introduce {x} to a new class?
What is a common misunderstanding about {x}, and what is the truth?
Give two reasons why it is useful to understand {x}.
""")

TASKS = _items("""
boil an egg; plant tomatoes in a pot; change a flat bicycle tyre; write a good résumé; prepare for a job interview;
learn a new language; make a cup of green tea; clean a wooden floor; pack for a weekend trip; save money on groceries;
start a vegetable garden; take better photos with a phone; fold a paper boat; organise a small birthday party; improve
messy handwriting; remember people's names; bake a simple loaf of bread; train a puppy to sit; set up a home office;
give a short speech; read more books; wash a wool sweater; plan a week of healthy dinners; choose a good password;
back up the files on a laptop; build a birdhouse; start running as a beginner; write a thank-you note; repot a house
plant; make pancakes for four people; sharpen a kitchen knife; prepare for a history exam; reduce plastic waste at
home; remove a coffee stain from a shirt; run a useful meeting; make new friends in a new city; fall asleep faster;
draw a simple portrait; tie a necktie; hang a picture straight; cook rice without burning it; teach a child to swim;
keep a diary; write a book review; start a small online shop; sew on a button; paint a bedroom wall; grow basil
indoors; clean a computer keyboard; plan a camping trip; negotiate a higher salary; find a cheap flight; learn to play
the guitar; make a simple website; break the habit of biting nails; take notes in a lecture; care for a goldfish; make
soup from leftover vegetables; prepare a house for winter; recycle old electronics; jump-start a car; write a
limerick; choose running shoes; start meditating; host a board game night; make a paper airplane; learn to juggle;
deal with a noisy neighbour; treat a small burn; polish leather shoes; set a realistic goal; research a family tree;
feed birds in winter; move to a new apartment; make homemade lemonade; proofread an essay; use less water at home;
prepare a picnic; organise a messy closet; read a map; make a study timetable; write a cover letter; choose a ripe
melon; stay focused while working from home
""")

HOWTO_PHRASINGS = _lines("""
How do I {x}? Give me a numbered list of steps.
List five tips to {x}.
Write step-by-step instructions for someone who wants to {x} for the first time.
I want to {x}. What do I need, and what should I do first?
Give me a checklist for this task: {x}.
What are the most common mistakes people make when they {x}?
Describe in four short steps how to {x}.
Can you explain how to {x} in one paragraph?
What is the easiest way to {x}?
""")

CHARACTERS = _items("""
a lonely lighthouse keeper; a clever fox; a young inventor; a retired astronaut; a shy baker; a talking clock; a brave
little mouse; an old librarian; a clumsy wizard; a girl who collects stones; a robot gardener; a lost penguin; a ferry
captain; a travelling musician; a grumpy bus driver; a sleepy dragon; a boy with a kite; a night nurse; a curious
octopus; a street painter; a forgetful king; a mountain guide; a detective who is afraid of the dark; a stray dog; a
young chess player; a tailor in a small town; a snail with big dreams; a postman; a beekeeper; a ghost who likes tea
""")

PLACES = _items("""
in a quiet fishing village; on a night train; in an abandoned theatre; on a small island; at a busy market; in a snowy
forest; in a city under the sea; at the edge of a desert; in an old castle; on a space station; in a tiny bookshop; at
a country fair; in a garden behind a hospital; on top of a windy hill; in a school during the holidays
""")

TURNS = _items("""
finds a letter that was never sent; must keep a promise; learns to ask for help; makes an unlikely friend; discovers a
hidden door; loses something precious; hears a strange song; has one day to fix a mistake; finds a map; saves a
stranger; wins a contest by accident; decides to go home; tells the truth at last; shares the last piece of bread
""")

STORY_PHRASINGS = _lines("""
Write a short story about {who}. It is set {where}, and the hero {what}.
Write the opening paragraph of a story in which {who} {what}. It takes place {where}.
Tell me a bedtime story: {who} lives {where} and {what}.
Write a story of about one hundred words. The hero is {who}, the story happens {where}, and the hero {what}.
Create a short tale with a happy ending in which {who} {what} {where}.
""")

POEM_SUBJECTS = _items("""
the first snow of the year; a rainy Monday; an empty swing; my grandmother's kitchen; the sea at night; an old pair of
shoes; the smell of coffee; a city that never sleeps; a garden in spring; saying goodbye at a station; a candle in the
window; the last day of school; a river that meets the sea; friendship; a cat on a warm roof; the moon and a wolf;
growing older; a broken clock; wind in a wheat field; the colour blue; a long road home; a library at closing time;
hope after a storm; baking bread with a child; stars over the desert; a lost umbrella; the sound of a cello; a
mother's hands; a quiet morning; summer fireflies; an autumn leaf; a small boat; patience; a spider's web with dew; a
market full of fruit; the first day at work; a mountain lake; an unfinished letter; laughter; a winter fire; a sparrow
on a wire; the bridge near my house; a paper lantern
""")

POEM_PHRASINGS = _lines("""
Write a short poem about {x}.
Write a haiku about {x}.
Write four rhyming lines about {x}.
Write a free-verse poem that describes {x} without using the word "beautiful".
Compose a cheerful song verse about {x}.
Write a poem of two stanzas about {x} in a calm mood.
""")

FUNCTIONS = _items("""
returns the larger of two numbers; reverses a string; checks whether a word is a palindrome; counts the vowels in a
text; returns the factorial of a number; checks whether a number is prime; returns the first n Fibonacci numbers; sums
the even numbers in a list; removes duplicates from a list and keeps the order; finds the longest word in a sentence;
converts Celsius to Fahrenheit; counts how often each word appears in a text; merges two sorted lists; flattens a list
of lists; computes the average of a list of grades; returns the second largest number in a list; checks whether two
words are anagrams; computes the area of a circle; reads a text file and returns its number of lines; capitalises the
first letter of every word; finds the greatest common divisor of two integers; checks whether a year is a leap year;
sorts a list of tuples by the second element; rotates a list by k positions; finds the index of an element with binary
search; sorts a list with bubble sort; converts a decimal number to binary; removes all punctuation from a string;
groups a list of words by their first letter; computes the dot product of two vectors; transposes a matrix; returns
the common elements of two lists; finds the missing number in a range; inverts a dictionary; validates an email
address in a simple way; generates a random password; counts down from ten and prints each number; prints a
multiplication table; checks whether brackets are balanced; splits a list into chunks of a given size; finds the
shortest string in a list; returns the digits of an integer as a list; computes compound interest; checks whether a
list is sorted; computes the median of a list; converts seconds to hours, minutes and seconds; replaces spaces with
underscores; returns the unique characters of a string; implements a stack with push and pop; implements a queue with
enqueue and dequeue; models a bank account with deposit and withdraw; models a rectangle with an area method; parses a
line of comma-separated values; writes a dictionary to a JSON file; computes the distance between two points;
simulates rolling two dice; counts the lines that contain a word; finds all divisors of a number; adds two matrices;
encodes a message with a Caesar cipher; finds the most frequent element of a list; retries a call up to three times;
measures how long another function takes; checks whether a string contains only digits; formats a price with two
decimals
""")

CODE_PHRASINGS = _lines("""
Write a Python function or class that {x}.
Write Python code that {x}, and explain it briefly.
I am learning Python. Show me simple code that {x}, with comments.
In Python, write something short that {x}. Include an example of its use.
Write well-named Python code that {x}, with a docstring.
How can I write Python code that {x}? Show the code first, then explain it.
""")

CODE_QUESTIONS = _lines("""
What is the difference between a list and a tuple in Python?
Explain what a for loop does in Python, with a short example.
What does the `with` statement do when I open a file in Python?
How do I catch an exception in Python? Show a small example.
Write a SQL query that returns the names of all customers from Berlin, sorted by last name.
Write an HTML page with a title, one heading and an unordered list of three fruits.
What is a Python dictionary, and when should I use one?
Explain what recursion is and show a short Python example.
Write a bash command that lists the ten largest files in a folder, and explain each part.
What does the following Python code print? `for i in range(3): print(i * i)`
Write a JavaScript function that returns the sum of an array.
How do default arguments work in Python functions?
What is the purpose of unit tests? Show a tiny test in Python.
Write a SQL statement that creates a table for books with a title, an author and a year.
Explain list comprehensions in Python by rewriting a simple loop as one.
What is the difference between `==` and `is` in Python?
Write a CSS rule that makes all links green and removes the underline.
""")

TEXTS = _paragraphs("""
The town library will close for six weeks this summer while the roof is repaired. Readers can return books to a box at
the town hall. A small selection of novels and children's books will be lent from a bus that stops at the market every
Tuesday.

Honeybees talk to each other by dancing. A bee that finds flowers returns to the hive and moves in the shape of an
eight. The angle of the dance tells the others the direction, and its length tells them how far to fly.

Our company moved to a four-day week last year. Most teams finished as much work as before, and sick days went down by
a third. Some customers complained that nobody answered the phone on Fridays, so a small group now works on that day
in turns.

The old bridge over the river was built by hand in 1872. It carried carts, then buses, and it survived two floods.
Next spring it will become a bridge for walkers and cyclists, and cars will use the new one further south.

Maria opened her bakery with two ovens and one recipe. She started work at three in the morning and sold out by ten.
Five years later she has eight employees, but she still bakes the first loaf of every day herself.

Sleep helps the brain to store what we have learned. Students who sleep eight hours before an exam often do better
than students who study all night. Even a short nap in the afternoon can improve memory.

Wolves were brought back to the park in 1995. They hunted deer, so young trees could grow again along the streams.
Birds and beavers returned to the trees, and the banks of the streams became stronger.

The new phone is lighter than the last model and its battery lasts two days. The camera is good in daylight but poor
at night. At this price most buyers will be happy, although those who take many pictures should look elsewhere.

Many people believe that goldfish forget everything after three seconds. Experiments show the opposite. Goldfish can
learn to press a lever for food, and they remember the trick for several months.

The school garden began as a pile of rubble behind the gym. Pupils carried away the stones, brought compost and
planted beans. Today the kitchen uses their vegetables twice a week, and there is a waiting list to join the garden
club.

Salt was once so valuable that it was used to pay workers. It kept meat and fish from spoiling on long journeys.
Cities grew rich because they stood near salt mines or on the roads along which salt was carried.

The train to the coast was late again this morning. A fallen tree had blocked the track, and it took workers two hours
to remove it. Passengers were given free coffee, but many of them missed an important meeting.

Coral reefs cover less than one percent of the sea floor, yet a quarter of all sea animals depend on them. Warm water
makes corals lose their colour and sometimes die. Scientists are now growing corals in tanks to plant them on damaged
reefs.

Grandfather kept a notebook in which he wrote down the weather every day for forty years. After he died, a university
asked for a copy. His simple notes helped researchers to understand how the winters in our valley have changed.

The museum has bought a small painting that hung in a kitchen for decades. The owner thought it was a copy. An expert
recognised it at once, and it was sold for more than the house in which it was found.

Cycling to work is cheap, healthy and often faster than driving. It does need planning: a rain jacket, a good lock and
a safe route. Many cities are building wider lanes so that more people will try it.

Penguins share the work of raising their young. While one parent keeps the egg warm, the other walks to the sea to
catch fish. They recognise each other by voice, even among thousands of birds.

The city tested free buses for one month. The number of passengers rose by forty percent, and there were fewer cars in
the centre. The mayor says that the plan will continue if the region pays half of the cost.

Ada wanted to learn the violin at the age of sixty. Her teacher was twenty-three. They argued about tempo, laughed a
lot, and after two years they played a duet at the village festival.

A desert is not always hot. Antarctica is the largest desert in the world, because almost no rain or snow falls there.
What makes a desert is the lack of water, not the heat.

The restaurant on the corner changes its menu every day. The cook buys what looks best at the market and decides at
noon. There is no printed card, so the waiter explains every dish at the table.

Paper was invented in China about two thousand years ago. It was made from bark, rags and old fishing nets. The secret
travelled west slowly and reached Europe only after a thousand years.

During the storm the power went out in the whole valley. Neighbours who had hardly spoken before cooked together on a
gas stove. When the lights came back after three days, some of them were almost disappointed.

Working from home saves time and travel costs. However, it can be lonely, and it is hard to stop working when the
office is in the kitchen. A fixed end of the day and a daily call with a colleague can help.

Octopuses have three hearts and blue blood. Two hearts pump blood through the gills, and the third supplies the rest
of the body. That heart stops when the animal swims, which is why an octopus prefers to crawl.

The football club had lost nine games in a row when the new coach arrived. She did not change the players. She changed
the training, asked everybody to talk more, and the team won its next four matches.

Tea is the most popular drink in the world after water. It comes from one plant, and the colour depends on how the
leaves are treated. Green tea is dried quickly, while black tea is left to react with the air.

The first computers filled whole rooms and needed a team of operators. Today a watch has more power than those
machines. What has changed even more is the price: a calculation that once cost a month's wage is now free.

A farmer in the north has replaced his tractor with two horses for part of the work. The horses do not press the soil
as hard, and they need no fuel. The work takes longer, but the harvest has improved.

The lighthouse has been dark since ships began to use satellites. Volunteers painted it, repaired the stairs and
opened a café at the bottom. On clear days visitors can see the coast of the next country from the top.

Children who are read to every day know many more words when they start school. The choice of the book matters less
than the conversation about it. Asking what might happen next is enough to make a child think.

The hotel promised a quiet room with a view of the sea. We got a room above the kitchen and a view of the car park.
The staff were friendly and moved us on the second day, so we would still come back.

Glaciers are rivers of ice that move a few centimetres a day. They shape valleys and carry rocks far from where they
formed. Most of them are shrinking now, and villages below them worry about their water.

Leo found a wallet on the tram with two hundred euros in it. He looked for the owner for a week. The owner turned out
to be his new boss, who had not told anybody about the loss.

Plastic bottles can be turned into yarn for clothes. The bottles are washed, cut into flakes, melted and pulled into
threads. A warm jacket needs about twenty-five bottles, but washing it can release small fibres into the water.

The village shop was about to close when the owner retired. Sixty families bought shares and now run it together. It
sells stamps, bread and local cheese, and it has become the place where people meet.

Bamboo is a grass, although it can be as tall as a tree. Some kinds grow almost a metre a day. Because it is light and
strong, it is used for furniture, bicycles and even scaffolding.

The orchestra plays one concert a year for people who have never been to one. Listeners may sit between the musicians
and ask questions. Many of them buy a ticket for the next season.

Our flight was cancelled because of fog. The airline offered a bus that would take nine hours. We rented a car with
two strangers, sang old songs all the way, and arrived before the bus.

Memory champions are not born with special brains. They place the things they want to remember along a familiar path
in their mind. Anyone can learn the method in a few weeks of practice.
""")

TEXT_PHRASINGS = _lines("""
Summarize this text in one sentence: | {x}
Rewrite the following paragraph in simpler English. | {x}
{x} | Give this text a title, and explain your choice.
List the key points of this text as bullet points: | {x}
Rewrite this as a short news report: | {x}
{x} | What is the main message of this text?
Write three questions that a teacher could ask about this text, with their answers. | {x}
Continue this text with one more paragraph: | {x}
Text: {x} | Is the tone of this text positive, negative or neutral? Explain.
Turn this paragraph into a friendly message to a friend. | {x}
""")

PAIRS = _items("""
cats|dogs; tea|coffee; a bicycle|a car; city life|country life; paper books|e-books; a laptop|a desktop computer;
football|basketball; butter|olive oil; winter|summer; renting a home|buying a home; Python|JavaScript; a novel|a short
story; the Sun|the Moon; running|swimming; solar power|wind power; a violin|a guitar; working from home|working in an
office; a train|an airplane; honey|sugar; the ocean|a lake; a lion|a tiger; school uniforms|free choice of clothes;
television|radio; online courses|classroom courses; wood|steel; a debit card|a credit card; cooking at home|eating
out; Mars|Venus; emails|phone calls; cotton|wool; a democracy|a monarchy; a frog|a toad; chess|checkers; gas
stoves|electric stoves; apples|oranges; a museum|a gallery; theatre|cinema; a startup|a large company;
mountains|beaches for a holiday; group work|individual work; a brain|a computer; rice|pasta; planes|helicopters; a
diary|a blog; hot chocolate|milk; painting|photography; alligators|crocodiles; a compiler|an interpreter;
stairs|elevators; a butterfly|a moth; a marathon|a sprint; jazz|classical music; saving|investing; a letter|a text
message; planning|improvising; glass bottles|plastic bottles; a teacher|a coach; snow|rain; a king|a president; public
transport|private cars; a hammer|a screwdriver; camping|staying in a hotel; fresh vegetables|frozen vegetables; a
poem|a song; morning exercise|evening exercise; maps|GPS; ants|bees; sandals|boots
""")

COMPARE_PHRASINGS = _lines("""
Compare {a} and {b}.
What are the main differences between {a} and {b}?
Which is better, {a} or {b}? Give reasons for both sides.
Make a table that compares {a} and {b} in three respects.
What do {a} and {b} have in common?
List two advantages and two disadvantages of {a} compared with {b}.
I cannot decide between {a} and {b}. Help me to think about it.
Write a short dialogue between two people who argue about {a} and {b}.
""")

WORDS = _items("""
resilient; ambiguous; nostalgia; procrastinate; candid; meticulous; generous; reluctant; serendipity; obsolete;
frugal; vivid; inevitable; humble; diligent; compromise; skeptical; eloquent; fragile; spontaneous; abundant; curious;
hesitate; innovative; tranquil; stubborn; sincere; ephemeral; ordinary; perseverance; gratitude; ironic; courageous;
versatile; deliberate; gloomy; harmony; clumsy; plausible; thrive; solitude; wander; persuade; tedious; genuine;
legacy; ancient; cautious; dilemma; whimsical; anticipate; benevolent
""")

WORD_PHRASINGS = _lines("""
Define the word "{x}" and use it in a sentence.
What does "{x}" mean? Give two synonyms and one antonym.
Explain the word "{x}" to someone who is learning English.
Write three example sentences with the word "{x}".
Write a dictionary entry for "{x}".
Describe a situation in which somebody would use the word "{x}".
""")

SENTENCES = _lines("""
Where is the nearest train station?
I would like a table for two, please.
My sister lives in a small house near the sea.
The weather is beautiful today.
How much does this jacket cost?
We are going to the market tomorrow morning.
Thank you very much for your help.
The children are playing in the garden.
I have lost my keys.
Can you speak more slowly, please?
The museum opens at nine o'clock.
My favourite season is autumn.
The cat is sleeping under the table.
I need to buy bread, milk and eggs.
He has been working here for ten years.
What time does the last bus leave?
Good morning, my name is Anna.
The book that you gave me is very interesting.
Turn left at the corner and go straight on.
It is raining, so we are staying at home.
She wants to become a doctor.
This soup is too hot.
Happy birthday to you, my dear friend!
I do not understand the question.
Our hotel room has a view of the mountains.
They have two sons and one daughter.
""")

LANGUAGES = _items("French; Spanish; German; Italian; Portuguese")

TRANSLATE_PHRASINGS = _lines("""
Translate this sentence into {language}: {x}
How do you say "{x}" in {language}?
Translate into {language}, then explain each word: {x}
""")

EMAILS = _lines("""
my manager|ask for two days off next week to move to a new flat
a customer|apologise for a late delivery and offer a discount
my landlord|report a broken heater and ask for a repair
a former teacher|ask for a letter of recommendation
the whole team|announce that the Monday meeting moves to Tuesday
a hotel|book a double room for three nights in June
my neighbour|invite them to a garden party on Saturday
a job applicant|say politely that another person got the position
an online shop|return a pair of shoes that are too small
a friend|congratulate them on their new baby
a colleague|thank them for their help with a difficult project
the city council|ask for a crossing in front of the school
a conference organiser|offer a talk about teaching maths with games
my bank|report a payment that I do not recognise
a new employee|welcome them and explain the first day
a gym|cancel my membership at the end of the month
my professor|ask for more time for an essay because I was ill
a supplier|ask for a price list and delivery times
the parents of my class|remind them of the school trip on Friday
a magazine|suggest an article about urban gardens
a client|explain a delay in the project and give a new date
my cousin|plan a family reunion in the summer
the library|ask whether they have old maps of the town
a photographer|ask about prices for a small wedding
my old roommate|apologise for forgetting their birthday
the human resources office|ask how many vacation days I have left
a restaurant|praise the service and ask for a recipe
a landlord of a holiday house|ask whether dogs are allowed
the editor of a newspaper|complain about a mistake in an article
a volunteer group|offer to help on Sundays
an author|say how much I enjoyed their last novel
the support desk of a software company|describe a crash when I print
a language school|ask about evening courses in Spanish
my football team|say that training is cancelled because of snow
a mentor|share the news that I passed the exam
the electricity company|ask for an explanation of a high bill
a museum|ask for a guided tour for twenty pupils
a potential investor|introduce our bakery and ask for a meeting
a moving company|ask for an offer for a small flat
a doctor's office|move an appointment to another day
""")

EMAIL_PHRASINGS = _lines("""
Write an email to {who} to {what}.
Draft a short, polite email to {who}. I want to {what}.
Help me to write a message to {who} in which I {what}.
Write a formal email with a subject line to {who} to {what}.
Please write a warm but brief note to {who} to {what}. Sign it with "Sam".
""")

NAMES = _items("""
Olivia; Liam; Amara; Noah; Priya; Mateo; Sofia; Kenji; Hannah; Omar; Chloe; Daniel; Ingrid; Lucas; Fatima; Ethan;
Maya; Tom; Elena; Victor; Grace; Samuel; Leila; Jonas; Ruth; Carlos; Nina; Felix; Zoe; Henry; Aisha; Paul
""")

DAYS = _items("Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday")
MONTHS = _items("January; February; March; April; May; June; July; August; September; October; November; December")
TOWNS = _items("""
Lisbon; Oslo; Toronto; Nairobi; Dublin; Kyoto; Madrid; Vienna; Boston; Prague; Lima; Athens; Denver; Helsinki; Cairo;
Sydney; Porto; Montreal; Hanoi; Bergen
""")
GOODS = _items("""
desk lamps; notebooks; coffee mugs; garden chairs; backpacks; umbrellas; candles; cushions; paint brushes; headphones;
blankets; flower pots; water bottles; board games; picture frames; cook books
""")
JOBS = _items("""
nurse; carpenter; graphic designer; biology teacher; bus driver; chef; translator; accountant; photographer;
electrician; software engineer; architect; journalist; gardener; pharmacist; pilot
""")
HOBBIES = _items("""
playing the piano; rock climbing; baking bread; bird watching; painting; chess; swimming; knitting; hiking; pottery;
cycling; singing in a choir; collecting stamps; gardening; sailing; photography
""")
EVENTS = _items("""
a pottery workshop; a jazz concert; a book reading; a charity run; a cooking class; a flea market; a film night; a
chess tournament; a science fair; a garden tour; a poetry evening; a job fair; a lantern parade; a first-aid course; a
repair café; a wine tasting
""")
VENUES = _items("""
the town hall; the old mill; Central Library; Riverside Park; the community centre; the school gym; Hill Street
Theatre; the harbour museum; the Green Café; the university garden
""")

ORDER_NOTE = (
    "{name} from {town} ordered {n} {goods} for {price} dollars each on {day}. The order will arrive on {month} {date}."
)
PERSON_NOTE = "{name} is a {age}-year-old {job} who lives in {town}. In the evening {name} enjoys {hobby}."
EVENT_NOTE = (
    "There will be {event} at {venue} on {day}, {month} {date}, at {hour} pm. "
    "Tickets cost {price} euros; contact {name}."
)

EXTRACT_PHRASINGS = {
    ORDER_NOTE: _lines("""
Extract the customer, the product, the quantity and the price from this note as JSON: {note}
Make a table with the columns Customer, City, Product, Quantity and Arrival from this text. | {note}
{note} | Write the facts of this order as a bullet list.
Read the order and answer: who ordered what, and when will it arrive? | {note}
"""),
    PERSON_NOTE: _lines("""
Turn this description into a JSON object with the keys name, age, job, city and hobby. {note}
Convert this text to YAML: | {note}
{note} | List the name, the job and the hobby of this person, one per line.
Write a one-row Markdown table with everything we know about this person: {note}
"""),
    EVENT_NOTE: _lines("""
Extract the event, the place, the date and the price as JSON. | {note}
{note} | Rewrite this announcement as a calendar entry with one field per line.
What, where and when? Answer with three bullet points. | {note}
Turn this announcement into a Markdown table: {note}
"""),
}

FORMATTING = _lines("""
Sort these fruits alphabetically and print them as a numbered list: pear, apple, mango, cherry, banana, kiwi.
Write the days of the week as a JSON array.
Make a Markdown table of four European countries with their capitals and languages.
Convert this list into a CSV line: red, green, blue, yellow.
Format this address on separate lines: Rosa Lind, 14 Mill Lane, Bath, England.
Make a table of the planets with their order from the Sun.
Write a shopping list as a Markdown checklist: flour, eggs, milk, lemons, butter.
Classify these words as nouns, verbs or adjectives: run, quick, table, sing, bright, river.
Put these events in order: the first Moon landing, the invention of the wheel, the French Revolution, the first email.
Write a JSON object that describes a library book with a title, an author, a year and a list of topics.
Make a timetable for a school day as a table with two columns.
Group these animals into mammals, birds and fish: salmon, eagle, whale, penguin, trout, bat, sparrow.
Write a recipe card for a fruit salad with the headings Ingredients and Steps.
Show the seasons and their typical weather in a table.
""")

IDEAS = _items("""
names for a small coffee shop; names for a black kitten; gifts for a grandmother who loves gardening; activities for a
rainy day with children; healthy snacks for school; topics for a class presentation about space; slogans for a bicycle
shop; titles for a mystery novel set in Venice; ways to celebrate a fortieth birthday; questions to ask in a first
interview; hobbies that cost almost nothing; science experiments for the kitchen; ways to thank a teacher; themes for
a costume party; exercises that need no equipment; breakfasts that take five minutes; ways to use old newspapers;
games for a long car journey; plots for a short film; uses for a brick; topics for small talk at a wedding; ways to
make a small room look bigger; ideas for a school fundraiser; vegetarian dinners for guests; New Year's resolutions
that are easy to keep; names for a robot in a children's book; weekend trips without a car; ways to learn new words;
projects for a beginner in woodworking; things to put in a time capsule; ways to help an elderly neighbour; team
activities for a remote company; photo subjects for a foggy morning; ways to save electricity; conversation starters
for a language café; decorations made from paper; names for a folk band; skills that every teenager should learn; ways
to relax after work; characters for a fantasy game; crops that grow well in the shade; improvements for a public park;
ways to reuse glass jars; podcasts that a museum could make; inventions that would help cooks; ways to welcome new
neighbours; superpowers that would be useless; signs that a plant needs water; reasons to learn the piano as an adult;
mottos for a hiking club; facts about elephants; facts about the human hand; facts about ancient Egypt; facts about
volcanoes; facts about honey
""")

IDEA_PHRASINGS = _lines("""
Give me five {x}.
List six {x}, each with a short explanation.
I need {x}. Can you suggest some?
Brainstorm {x}, and tell me which one you like best.
Think of four {x}. Answer with a numbered list.
""")

SITUATIONS = _lines("""
I have an important exam tomorrow and I am too nervous to study.
My best friend and I have not spoken since an argument last month.
I started a new job and I am afraid to ask questions.
My houseplant has yellow leaves although I water it every day.
I want to wake up earlier, but I always press the snooze button.
My son spends all his free time on video games.
I was given credit for work that a colleague did.
I would like to write a novel, but I never finish a chapter.
My neighbours want me to join their choir, and I cannot sing.
I have two job offers: one pays more, the other sounds more interesting.
I keep buying things that I do not need.
My dog barks whenever I leave the house.
I forgot my partner's birthday.
I feel tired every afternoon at work.
My team never agrees on anything in meetings.
I moved to a country whose language I hardly speak.
I have to give a speech at my brother's wedding.
My daughter is afraid of the dark.
I want to eat less sugar, but I love desserts.
My computer has become very slow.
I promised to help a friend move, and now I am ill.
I received a gift that I do not like.
I am learning the drums, and my neighbours complain.
My grandmother wants to use a smartphone for the first time.
I have one free day in a city that I do not know.
I always compare myself with other people.
I have to cook for ten guests and I have a tiny kitchen.
My tomatoes are still green and the first frost is coming.
I found a mistake in a report that my boss has already sent.
I want to run ten kilometres, and I get out of breath after one.
I lent a friend money, and he seems to have forgotten it.
I spend three hours a day on the train.
My old bicycle was stolen.
I get bored when I meditate.
I have too many hobbies and no time for any of them.
My cat wakes me up at five every morning.
""")

ADVICE_PHRASINGS = _lines("""
{x} What should I do?
{x} Give me three pieces of advice.
You are a kind and practical friend. {x} What would you tell me?
{x} Help me to make a simple plan.
""")

# {a} is small, {b} larger and {ab} their product, so that every answer is a whole number.
ARITHMETIC = _lines("""
{name} buys {a} {goods} for {b} dollars each. How much does {name} pay in total?
A shop in {town} had {ab} {goods} and sold {a} of them on {day}. How many are left?
{name} and {other} hand out {ab} stickers equally to {a} friends. How many stickers does each friend get?
The bus from {town} to {town2} takes {a} hours and drives {b} kilometres every hour. How long is the route?
{name} reads {b} pages about {hobby} every day. How many pages does {name} read in {a} days?
A baker in {town} makes {b} trays of rolls with {a} rolls on each tray. {name} buys {b} rolls. How many rolls remain?
{name} the {job} earns {b} dollars an hour and works {a} hours on {day}. How much does {name} earn that day?
On {day}, {name} takes {a} children to the zoo in {town}. Each of the {a} tickets costs {b} euros. What do they cost?
{name} has twice as many {goods} as {other}. {other} has {b}. How many do they have together?
A rain barrel in the garden of {name} holds {ab} litres. {other} takes out {a} litres every day. When is it empty?
{name} is {a} years old, and {other}, a {job}, is {b} years older. How old will {other} be in ten years?
A school in {town} orders {b} boxes with {a} {goods} in each, and {a} of all of them are broken. How many are fine?
{name} runs {a} kilometres on {day} and twice as far the day after. How far does {name} run on both days together?
A farmer near {town} plants {a} rows of {b} trees. A storm destroys {b} trees. How many trees are still standing?
The price of {goods} in {town} fell from {b} euros to {a} euros. How much does {name} save by waiting to buy one?
{other} gives {name} {a} coins every {day}. {name} had {b} before. How many coins does {name} have after six weeks?
A train leaves {town} with {ab} passengers. In {town2}, {a} get off and {b} get on. How many are on the train now?
A recipe of {name} for four people needs {a} carrots and {b} olives. How much of each is needed for eight people?
{name} plants {b} tulips in each of {a} flower beds in {town}. How many tulips are there?
{other} has {ab} photos from {town} and puts {a} on every page of an album. How many pages does {other} fill?
A theatre in {town} has {b} rows with {a} seats each. On {day}, {b} seats stay empty. How many people are there?
{name} saves {b} dollars every month for a course in {hobby}. How much has {name} saved after {a} months?
A box of {goods} weighs {b} kilograms. {name} can carry {a} boxes with a cart. How heavy is the whole load?
{name} walks {a} kilometres to work in {town} and back again, five days a week. How far is that in one week?
{other} collected {b} shells on {day} and {name} collected {a} more than {other}. How many shells do they have together?
The {job} {name} visits {a} customers a day. How many customers does {name} visit in {b} days?
A library in {town} lends {b} books every hour and is open for {a} hours on {day}. How many books does it lend that day?
{name} cuts a rope of {ab} centimetres into {a} equal pieces for {other}. How long is each piece?
A club for {hobby} has {b} members, and each pays {a} euros. The club spends {b} euros on tea. How much money is left?
{name} drives from {town} to {town2} in {a} hours and back in {b} hours because of snow. How long did {name} drive?
{other} bakes {b} cookies, eats three, and gives the rest to {name}. How many cookies does {name} get?
A {job} in {town} drinks {a} cups of tea a day. How many cups is that in a week, and how many in three weeks?
{name} has {b} red and {a} blue {goods}. What is the difference, and how many are there in all?
On {day}, {name} sells {a} paintings in {town} for {b} euros each and pays {a} euros for the stall. What is the profit?
A tram in {town} runs every {a} minutes. {name} just missed one and takes the second one after it. How long is the wait?
{name} and {other} practise {hobby} for {b} minutes on each of {a} days. How many minutes do they practise?
A cinema in {town2} sold {ab} tickets on {day} and {b} fewer the day after. How many tickets were sold on both days?
{other} pays for {a} {goods} with a hundred-dollar note. Each costs {a} dollars. How much change does {other} get?
A garden in {town} is {b} metres long and {a} metres wide. {name} wants a fence around it. How long must the fence be?
The floor of the workshop of {name}, a {job}, is {b} metres by {a} metres. What is its area in square metres?
{name} has {b} points in a game. {other} has {a} points more, then loses four. How many points does {other} have?
A hotel in {town} has {a} floors with {b} rooms on each. On {day}, {a} rooms are free. How many rooms are taken?
{name} learns {a} new words every day. {other} learns twice as many. How many words does {other} know after a week?
A parcel to {town} costs {a} euros, and {name} sends {b} of them with {goods}. What is the postage in total?
{name} pours {ab} millilitres of juice equally into {b} glasses at {other}'s party. How much is in each glass?
""")


def questions(rng: random.Random) -> Iterator[str]:
    """Short factual questions."""
    yield from QUESTIONS


def explanations(rng: random.Random) -> Iterator[str]:
    """A concept explained to somebody."""
    yield from _one_phrasing_each(rng, CONCEPTS, EXPLAIN_PHRASINGS)


def arithmetic(rng: random.Random) -> Iterator[str]:
    """Word problems with whole-number answers; the nine of one form differ in names, things and numbers."""
    names, towns, goods = _shuffled(rng, NAMES), _shuffled(rng, TOWNS), _shuffled(rng, GOODS)
    jobs, hobbies = _shuffled(rng, JOBS), _shuffled(rng, HOBBIES)
    for i, form in enumerate(ARITHMETIC):
        for j in range(9):
            a, b = rng.randint(3, 9), rng.randint(11, 29)
            people = {"name": names[(i + 5 * j) % len(names)], "other": names[(i + 5 * j + 13) % len(names)]}
            places = {"town": towns[(i + 3 * j) % len(towns)], "town2": towns[(i + 3 * j + 10) % len(towns)]}
            things = {"goods": goods[(i + j) % len(goods)], "day": DAYS[(i + j) % len(DAYS)]}
            work = {"job": jobs[(i + j) % len(jobs)], "hobby": hobbies[(i + j) % len(hobbies)]}
            yield form.format(**people, **places, **things, **work, a=a, b=b, ab=a * b)


def howtos(rng: random.Random) -> Iterator[str]:
    """Instructions, tips and checklists."""
    yield from _one_phrasing_each(rng, TASKS, HOWTO_PHRASINGS)


def stories(rng: random.Random) -> Iterator[str]:
    """Short stories with a given hero, place and turn; each hero appears in three."""
    for i, who in enumerate(_shuffled(rng, CHARACTERS)):
        for j, (where, what) in enumerate(zip(rng.sample(PLACES, 3), rng.sample(TURNS, 3), strict=True)):
            yield STORY_PHRASINGS[(i + 2 * j) % len(STORY_PHRASINGS)].format(who=who, where=where, what=what)


def poems(rng: random.Random) -> Iterator[str]:
    """Poems in several forms."""
    yield from _one_phrasing_each(rng, POEM_SUBJECTS, POEM_PHRASINGS)


def code(rng: random.Random) -> Iterator[str]:
    """Small programs, and questions about code."""
    yield from _one_phrasing_each(rng, FUNCTIONS, CODE_PHRASINGS)
    yield from CODE_QUESTIONS


def texts(rng: random.Random) -> Iterator[str]:
    """A little text and something to do with it."""
    yield from _one_phrasing_each(rng, TEXTS, TEXT_PHRASINGS)


def comparisons(rng: random.Random) -> Iterator[str]:
    """Two things compared."""
    for i, pair in enumerate(_shuffled(rng, PAIRS)):
        a, b = pair.split("|")
        yield COMPARE_PHRASINGS[i % len(COMPARE_PHRASINGS)].format(a=a, b=b)


def words(rng: random.Random) -> Iterator[str]:
    """Words defined and used."""
    yield from _one_phrasing_each(rng, WORDS, WORD_PHRASINGS)


def translations(rng: random.Random) -> Iterator[str]:
    """Each sentence into two languages."""
    for i, sentence in enumerate(_shuffled(rng, SENTENCES)):
        for j, language in enumerate(rng.sample(LANGUAGES, 2)):
            yield TRANSLATE_PHRASINGS[(i + j) % len(TRANSLATE_PHRASINGS)].format(x=sentence, language=language)


def emails(rng: random.Random) -> Iterator[str]:
    """Messages with a recipient and a purpose."""
    for i, line in enumerate(_shuffled(rng, EMAILS)):
        who, what = line.split("|")
        yield EMAIL_PHRASINGS[i % len(EMAIL_PHRASINGS)].format(who=who, what=what)


def extractions(rng: random.Random) -> Iterator[str]:
    """The facts of a note as JSON, a table or a list; and small formatting tasks."""
    for i in range(90):
        for note_form, phrasings in EXTRACT_PHRASINGS.items():
            note = note_form.format(
                name=rng.choice(NAMES),
                town=rng.choice(TOWNS),
                goods=rng.choice(GOODS),
                job=rng.choice(JOBS),
                hobby=rng.choice(HOBBIES),
                event=rng.choice(EVENTS),
                venue=rng.choice(VENUES),
                day=rng.choice(DAYS),
                month=rng.choice(MONTHS),
                date=rng.randint(1, 28),
                hour=rng.randint(1, 9),
                price=rng.randint(5, 45),
                age=rng.randint(22, 67),
                n=rng.randint(2, 40),
            )
            yield phrasings[i % len(phrasings)].format(note=note)
    yield from FORMATTING


def ideas(rng: random.Random) -> Iterator[str]:
    """Lists of suggestions."""
    yield from _one_phrasing_each(rng, IDEAS, IDEA_PHRASINGS)


def advice(rng: random.Random) -> Iterator[str]:
    """Somebody describes a situation and wants help."""
    yield from _one_phrasing_each(rng, SITUATIONS, ADVICE_PHRASINGS)


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "question": questions,
    "explanation": explanations,
    "arithmetic": arithmetic,
    "how-to": howtos,
    "story": stories,
    "poem": poems,
    "code": code,
    "text": texts,
    "comparison": comparisons,
    "word": words,
    "translation": translations,
    "email": emails,
    "extraction": extractions,
    "ideas": ideas,
    "advice": advice,
}


def demo_rows() -> Iterator[dict[str, Any]]:
    """Every prompt as a row, kind by kind."""
    for kind, prompts_of_kind in KINDS.items():
        for prompt in prompts_of_kind(random.Random(f"{SEED}/{kind}")):
            yield {"conversations": [{"from": "human", "value": prompt}], "source": f"hero-demo/{kind}"}


def demo_file_text() -> str:
    """The whole content of ``demo_prompts.jsonl``."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in demo_rows())


def _one_phrasing_each(rng: random.Random, topics: list[str], phrasings: list[str]) -> Iterator[str]:
    for i, topic in enumerate(_shuffled(rng, topics)):
        yield phrasings[i % len(phrasings)].format(x=topic)


def _shuffled(rng: random.Random, values: list[str]) -> list[str]:
    return rng.sample(values, len(values))


if __name__ == "__main__":
    DEMO_PROMPTS_PATH.write_text(demo_file_text(), encoding="utf-8", newline="\n")
    print(f"{DEMO_PROMPTS_PATH}: {sum(1 for _ in demo_rows())} prompts")
