"""Everyday sentence shapes for the corpus: templates with slots, and the words that fill them.

A template is plain text with ``{slot}`` names; a slot may hold slots again. Every phrase below was
written for this repository.
"""

from __future__ import annotations

import random
import re

__all__ = ["SLOTS", "TEMPLATES", "SHORT", "can_say", "expand", "template_pattern"]


# fmt: off


def _words(text: str) -> list[str]:
    """Splits a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


SLOTS: dict[str, list[str]] = {
    "name": _words(
        "Anna, Ben, Carol, David, Emma, Frank, Grace, Henry, Alice, Jack, Kate, Leo, Mary, Nick, Olivia, Paul, "
        "Ruth, Sam, Tom, Laura, Peter, Sarah, Mark, Julia, Robert, Helen, James, Linda, Michael, Susan, George, "
        "Nancy, Martin, Rose, Daniel, Clara, Simon, Ellen, Oscar, Lucy, Edward, Jane, Walter, Amy, Charles, Maria"
    ),
    "person": _words(
        "the teacher, the doctor, the driver, the farmer, the baker, the boss, the waiter, the police officer, "
        "the manager, the captain, the student, the cook, the painter, the nurse, the lawyer, the writer, "
        "the mayor, the singer, the guard, the pilot, the old woman, the young man, the little girl, the boy, "
        "my mother, my father, my brother, my sister, my uncle, my aunt, my friend, my wife, my husband, my son, "
        "my daughter, my cousin, my grandmother, your brother, your mother, your friend, his wife, her husband, "
        "our neighbor, our teacher, their son, {name}, {name}, {name}, he, she, everybody, nobody, someone"
    ),
    "people": _words(
        "the children, the students, the workers, the players, the farmers, the soldiers, the girls, the boys, "
        "the guests, the neighbors, my parents, my friends, your parents, our friends, the visitors, the police, "
        "the dogs, the birds, the horses, both of them, some people, many people, most people, they, we, you, I"
    ),
    "adj": _words(
        "big, small, old, new, good, bad, long, short, heavy, light, red, blue, green, yellow, black, white, brown, "
        "gray, clean, dirty, empty, full, warm, cold, hot, cool, dry, wet, soft, hard, loud, quiet, cheap, "
        "expensive, simple, strange, beautiful, ugly, broken, open, closed, round, square, thin, thick, wide, "
        "narrow, deep, sharp, sweet, bitter, fresh, funny, little, large, huge, tiny, wooden, golden, silver, "
        "famous, favorite, different, second, third, last, next, first, other, same, best, whole, lost, dark, bright"
    ),
    "feel": _words(
        "happy, sad, tired, angry, hungry, thirsty, sick, busy, ready, late, early, sure, afraid, alone, bored, "
        "surprised, worried, proud, nervous, calm, free, lucky, careful, friendly, honest, kind, polite, rude, "
        "serious, shy, strong, weak, wrong, right, well, fine, better, asleep, awake, upset, excited, quite sure"
    ),
    "thing": _words(
        "book, table, chair, door, window, car, bus, train, boat, plane, bike, house, room, bed, lamp, clock, watch, "
        "phone, letter, paper, pen, pencil, bag, box, cup, glass, bottle, plate, knife, fork, spoon, pan, pot, key, "
        "hat, coat, shirt, dress, shoe, sock, ring, picture, map, ticket, newspaper, computer, camera, radio, "
        "television, guitar, piano, ball, game, toy, gift, flower, tree, leaf, stone, rock, fire, tool, hammer, "
        "nail, rope, wheel, engine, machine, wall, floor, roof, garden, fence, gate, bridge, road, path, basket, "
        "blanket, pillow, towel, mirror, brush, candle, carpet, curtain, drawer, shelf, ladder, bucket, stick, "
        "umbrella, wallet, purse, coin, card, stamp, envelope, magazine, story, song, question, answer, plan, idea, "
        "problem, list, report, message, word, number, color, dog, cat, horse, cow, bird, fish, rabbit, mouse, sheep"
    ),
    "things": _words(
        "books, letters, flowers, shoes, clothes, tickets, keys, pictures, apples, oranges, potatoes, eggs, "
        "glasses, cups, plates, chairs, boxes, stones, trees, leaves, cars, boats, horses, cows, birds, stories, "
        "songs, questions, tools, games, stamps, coins, photographs, papers, bottles, blankets, candles, windows"
    ),
    "food": _words(
        "bread, butter, cheese, milk, coffee, tea, water, juice, sugar, salt, pepper, rice, meat, chicken, fish, "
        "soup, salad, fruit, cake, pie, ice cream, chocolate, honey, an apple, an egg, an orange, a banana, "
        "a sandwich, some cookies, some potatoes, some beans, a bowl of soup, a cup of tea, a glass of milk, "
        "a glass of water, a piece of bread, a slice of cake, two eggs, fried rice, cold beer, red wine, breakfast, "
        "lunch, dinner"
    ),
    "place": _words(
        "the park, the school, the station, the airport, the hospital, the office, the bank, the library, "
        "the market, the church, the beach, the river, the lake, the forest, the mountains, the village, the city, "
        "the farm, the hotel, the museum, the theater, the restaurant, the post office, the bakery, the bookstore, "
        "the supermarket, the swimming pool, the garden, the kitchen, the bathroom, the bedroom, the living room, "
        "the garage, the basement, the corner, the bus stop, the harbor, the island, the hill, the valley, the town, "
        "London, Paris, Boston, Chicago, Canada, Spain, Italy, Japan, the other side of town, my office, your house, "
        "her room, his desk"
    ),
    "where": _words(
        "in {place}, at {place}, near {place}, behind {place}, in front of {place}, next to {place}, "
        "on the {adj} {thing}, under the {thing}, beside the {thing}, on the table, on the floor, in the box, "
        "in the drawer, on the shelf, at home, at work, at school, outside, upstairs, downstairs, over there, "
        "here, on the wall, by the window, in the corner, in the car, on the train, in bed, across the road, "
        "down the hill, along the river, around the corner, between the two houses, above the door, inside the bag"
    ),
    "when": _words(
        "today, tomorrow, yesterday, tonight, this morning, this afternoon, this evening, last night, last week, "
        "next week, next month, last year, next year, on {day}, on {day} morning, on {day} evening, every day, "
        "every morning, every evening, in {month}, in the morning, in the evening, at night, at noon, "
        "at midnight, at {hour} o'clock, before lunch, after dinner, after school, before breakfast, all day, "
        "all night, right now, in a minute, in an hour, in {small} days, {small} days ago, {small} weeks ago, soon, "
        "later, again, for the first time, once a week, twice a year, for {small} hours, since {day}, in the summer, "
        "in the winter, in spring, in the autumn, on the weekend, during the holidays, at the moment, these days"
    ),
    "day": _words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _words(
        "January, February, March, April, May, June, July, August, September, October, November, December"
    ),
    "hour": _words("one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve"),
    "small": _words("two, three, four, five, six, seven, eight, nine, ten, twelve, fifteen, twenty, thirty, a few"),
    "minute": _words("five, ten, fifteen, twenty, twenty five, thirty, forty, fifty"),
    "np": [
        "the {thing}", "the {adj} {thing}", "my {thing}", "your {thing}", "his {thing}", "her {adj} {thing}",
        "our {thing}", "their {adj} {thing}", "this {thing}", "that {thing}", "that {adj} {thing}", "a {adj2} {thing}",
        "another {thing}", "one of the {things}", "the {things}", "some {things}", "these {things}", "all the {things}",
        "two {adj} {things}", "{small} {things}", "{name}'s {thing}", "a lot of {things}", "the {thing} and the {thing}",
    ],
    "adj2": _words("big, small, new, good, long, short, heavy, red, blue, green, black, white, clean, dirty, warm, "
                   "cold, soft, hard, cheap, simple, strange, beautiful, broken, round, sharp, sweet, fresh, little"),
    "vp": [
        "carry {np}", "clean {np}", "open {np}", "close {np}", "find {np}", "look at {np}", "look for {np}", "buy {np}",
        "sell {np}", "bring {np}", "take {np}", "give me {np}", "show me {np}", "move {np}", "fix {np}", "paint {np}",
        "draw {np}", "wash {np}", "watch {np}", "hold {np}", "push {np}", "pull {np}", "break {np}", "count {np}",
        "choose {np}", "keep {np}", "use {np}", "need {np}", "like {np}", "forget {np}", "remember {np}", "talk about {np}",
        "wait for {person}", "help {person}", "call {person}", "meet {person}", "visit {person}", "ask {person}",
        "thank {person}", "listen to {person}", "speak to {person}", "write to {person}", "play with {person}",
        "go to {place}", "walk to {place}", "drive to {place}", "run to {place}", "travel to {place}", "stay {where}",
        "sit {where}", "stand {where}", "sleep {where}", "work {where}", "live {where}", "wait {where}", "play {where}",
        "eat {food}", "drink {food}", "cook {food}", "make {food}", "order {food}", "try {food}", "study", "swim",
        "dance", "sing", "read a book", "learn English", "come back", "go home", "get up", "take a walk", "catch the bus",
        "tell the truth", "change my mind", "turn it on", "turn it off", "pay for it", "do it again", "think about it",
        "start", "stop", "leave", "win", "try again", "fall asleep", "go shopping", "have a party", "take a photograph",
    ],
    "past": [
        "carried {np}", "cleaned {np}", "opened {np}", "closed {np}", "found {np}", "looked at {np}", "bought {np}",
        "sold {np}", "brought {np}", "took {np}", "gave me {np}", "showed us {np}", "moved {np}", "fixed {np}", "saw {np}",
        "painted {np}", "washed {np}", "watched {np}", "held {np}", "broke {np}", "chose {np}", "kept {np}", "used {np}",
        "needed {np}", "liked {np}", "lost {np}", "talked about {np}", "waited for {person}", "helped {person}",
        "called {person}", "met {person}", "visited {person}", "asked {person}", "listened to {person}", "knew {np}",
        "wrote to {person}", "went to {place}", "walked to {place}", "drove to {place}", "ran to {place}", "came {when}",
        "stayed {where}", "sat {where}", "stood {where}", "slept {where}", "worked {where}", "lived {where}", "heard {np}",
        "ate {food}", "drank {food}", "cooked {food}", "made {food}", "ordered {food}", "smiled", "cried", "laughed", "sang",
        "felt {feel}", "was {feel}", "looked {feel}", "seemed {feel}", "got {feel}", "became {feel}", "fell {where}",
        "said nothing", "told me everything", "changed the subject", "left {place}", "arrived {where}", "came home",
    ],
    "ing": [
        "carrying {np}", "cleaning {np}", "looking at {np}", "looking for {np}", "buying {np}", "moving {np}",
        "painting {np}", "washing {np}", "watching {np}", "waiting for {person}", "helping {person}", "calling {person}",
        "listening to {person}", "talking to {person}", "writing to {person}", "going to {place}", "walking to {place}",
        "driving to {place}", "sitting {where}", "standing {where}", "sleeping {where}", "working {where}",
        "living {where}", "eating {food}", "drinking {food}", "cooking {food}", "reading", "swimming", "dancing",
        "singing", "running", "playing {where}", "learning English", "coming home", "getting {feel}", "feeling {feel}",
    ],
    "modal": _words("can, could, will, would, should, must, might, may, cannot, could not, will not, should not, "
                    "want to, have to, need to, used to, like to, try to, hope to, do not, did not, never"),
    "adv": _words("usually, often, always, never, sometimes, really, probably, finally, suddenly, quickly, slowly, "
                  "carefully, quietly, almost, only, just, still, already, simply, once, even, also, certainly"),
    "because": [
        "because {person} was {feel}", "because it was {adj}", "because of the weather", "because {people} were {feel}",
        "when {person} {past}", "while {person} was {ing}", "before {person} {past}", "after {person} {past}",
        "but {person} was {feel}", "and {person} {past}", "so {person} {past}", "until {person} {past}",
        "although {person} was {feel}", "as soon as {person} {past}", "without {ing}", "instead of {ing}",
    ],
}

TEMPLATES: list[str] = [
    "{person} {past}.", "{person} {past} {when}.", "{people} {past} {where}.", "{person} {past} {because}.",
    "{people} {past} {because}.", "{people} {adv} {past}.", "{person} {adv} {past} {when}.", "{people} {modal} {vp}.",
    "{people} {modal} {vp} {when}.", "{people} {modal} {vp} {because}.", "I {modal} {vp} {when}.", "We {modal} {vp}.",
    "You {modal} {vp} {when}.", "They {modal} {vp} {because}.", "{when}, {person} {past}.", "{when}, {people} {past}.",
    "{person} was {ing} {when}.", "{person} is {ing}.", "{people} are {ing} {when}.", "{people} were {ing}.",
    "I am {ing}.", "I am {ing} {when}.", "I was {ing} {because}.", "I am {feel}.", "I am not {feel}.", "I feel {feel} {when}.",
    "You are {feel}.", "You are not {feel}, are you?", "We are {feel} {when}.", "{person} is {feel}.", "{person} is not {feel}.",
    "{np} is {adj}.", "{np} was {where}.", "{np} is {where}.", "The {thing} is too {adj}.", "The {thing} was very {adj}.",
    "The {thing} is {adj} and {adj}.", "The {adj} {thing} is {where}.", "This {thing} is {adj}, and that one is {adj}.",
    "Is the {thing} {adj}?", "Is {person} {feel}?", "Are you {feel}?", "Are {people} {ing}?", "Is {person} {ing} {when}?",
    "Was {person} {feel} {when}?", "Were you {where} {when}?", "Do you {vp}?", "Do you {vp} {when}?", "Do they {vp}?",
    "Do you want to {vp}?", "Do we have to {vp} {when}?", "Did you {vp}?", "Did you {vp} {when}?", "Did {person} {vp}?",
    "Does {person} {vp}?", "Does {name} {vp} {when}?", "Can you {vp}?", "Can I {vp}?", "Can we {vp} {when}?", "Could you {vp}?",
    "Could you please {vp}?", "Would you {vp}?", "Would you like {food}?", "Would you like to {vp} {when}?", "Will you {vp}?",
    "Will {person} {vp} {when}?", "Should we {vp}?", "Should I {vp} {when}?", "May I {vp}?", "Shall we {vp}?",
    "Have you seen {np}?", "Have you ever been to {place}?", "Has {person} called?", "Have they {past}?",
    "What do you {vp2}?", "What did {person} {vp2}?", "What is {where}?", "What is that {thing}?", "What time is it?",
    "What kind of {thing} is this?", "What are you {ing2}?", "What color is the {thing}?", "What should we do {when}?",
    "Where is {np}?", "Where is {person}?", "Where are {people} going?", "Where did you {vp}?", "Where do you {vp2}?",
    "Where can I {vp}?", "When did {person} {vp}?", "When will you {vp}?", "When does the {thing} start?",
    "Why did you {vp}?", "Why is the {thing} {adj}?", "Why are you {feel}?", "Why did {person} {vp}?", "Why not {vp}?",
    "Who is {ing}?", "Who {past}?", "Who wants to {vp}?", "Who will {vp} {when}?", "Which {thing} is yours?",
    "Which one do you like?", "How are you {when}?", "How is {person}?", "How did you {vp}?", "How do I {vp}?",
    "How much is the {thing}?", "How many {things} are {where}?", "How old is {person}?", "How far is it to {place}?",
    "Please {vp}.", "Please {vp} {when}.", "Please do not {vp}.", "Let us {vp}.", "Let us {vp} {when}.", "Let me {vp}.",
    "{vp}, please.", "{vp} {when}.", "Do not {vp}.", "Never {vp} {where}.", "{name}, please {vp}.", "Try to {vp} {when}.",
    "There is {food} {where}.", "There was a {adj2} {thing} {where}.", "There are {small} {things} {where}.",
    "There is no {thing} {where}.", "There were many {things} {where}.", "It is {adj} {where}.", "It was {adj} {when}.",
    "It is {feel2} to {vp}.", "It is time to {vp}.", "It will be {adj} {when}.", "It rained {when}.", "It is going to snow {when}.",
    "It takes {small} minutes to {vp}.", "It is {hour} o'clock.", "It is {minute} past {hour}.", "It is half past {hour}.",
    "It is a quarter to {hour}.", "It is {minute} minutes to {hour}.", "The {thing} leaves at {hour} {minute}.",
    "We will meet at {hour} o'clock {where}.", "The shop opens at {hour} and closes at {hour}.", "Call me at {hour} thirty.",
    "Today is {day}, the {small} of {month}.", "My birthday is in {month}.", "See you on {day}.", "I will see you {when}.",
    "I like {food}.", "I do not like {food}.", "{person} likes {food}.", "I had {food} for {meal}.", "We need more {food}.",
    "{food} and {food}, please.", "The {thing} costs {small} dollars.", "I have {small} {things}.", "{person} has {np}.",
    "I have to {vp}, but I am {feel}.", "I think {person} is {feel}.", "I think that {people} {past}.", "I hope you {vp} {when}.",
    "I know {person}.", "I know where {person} {past}.", "I do not know why {person} {past}.", "I am sorry, I {past}.",
    "I am glad that you {past}.", "I was so {feel} that I {past}.", "I have never {past}.", "I had {past}, so I was {feel}.",
    "{person} said that {people} {past}.", "{person} told me to {vp}.", "{person} asked me to {vp} {when}.", "He said he {past}.",
    "{person} wants to {vp}.", "{person} wanted to {vp} {when}.", "{person} has to {vp}.", "{person} likes {ing}.",
    "{person} stopped {ing}.", "{person} began to {vp}.", "{person} goes to {place} {when}.", "She asked if you {past}.",
    "If you {vp}, I will {vp}.", "If it rains, we will {vp}.", "If {person} {past}, I would {vp}.", "When I {past}, I was {feel}.",
    "When {person} {past}, {people} {past}.", "After {ing}, {person} {past}.", "Before {ing}, {people} {past}.",
    "{name} and {name} {past}.", "{name} and I {past} {when}.", "{name} {past}, and {name} {past}.", "Hello, {name}.",
    "Hello, my name is {name}.", "Good morning, {name}.", "Good night, {name}.", "Thank you, {name}.", "Thank you for {ing}.",
    "Thank you for the {thing}.", "Excuse me, where is {place}?", "Yes, I {past}.", "No, I {modal} {vp}.", "Yes, {person} is {feel}.",
    "No, {person} did not {vp}.", "Well, {people} {modal} {vp}.", "Oh, what a {adj2} {thing}.", "Look at that {adj} {thing}.",
    "The {thing} {where} is {adj}.", "The {thing} that {person} bought is {adj}.", "One of the {things} was {adj}.",
    "Both {things} are {adj}.", "{np} and {np} were {where}.", "My {thing} is {adj}er than yours.", "This is {np}.", "That was {np}.",
    "These are my {things}.", "Here is {np}.", "Here are your {things}.", "Give the {thing} to {person}.", "Put the {thing} {where}.",
    "{person} put the {thing} {where}.", "{person} gave {person} a {adj2} {thing}.", "I saw {person} {where} {when}.",
]
SLOTS["vp2"] = _words("like, want, need, see, hear, think, know, do, mean, say, eat, drink, read, buy, find, remember")
SLOTS["ing2"] = _words("doing, eating, reading, looking for, thinking about, talking about, making, waiting for, writing")
SLOTS["feel2"] = _words("easy, hard, good, bad, nice, better, important, dangerous, possible, impossible, fun, too late")
SLOTS["meal"] = _words("breakfast, lunch, dinner, dessert")

SHORT: list[str] = [
    "Yes.", "No.", "Maybe.", "Hello.", "Goodbye.", "Thanks.", "Thank you.", "Of course.", "Not yet.", "Right now.", "Okay.",
    "I see.", "Good morning.", "Good evening.", "See you soon.", "That is right.", "I agree.", "Never mind.", "Come in.",
    "Sit down.", "Go away.", "Hurry up.", "Be quiet.", "Well done.", "Why not?", "What?", "Who?", "Where?", "When?", "Really?",
    "How nice.", "You are welcome.", "Excuse me.", "I am sorry.", "No problem.", "Let us go.", "Wait a minute.", "Stop it.",
]

# fmt: on
_SLOT = re.compile(r"\{(\w+)\}")


def expand(template: str, rng: random.Random) -> str:
    """Fills every slot of `template`, slots within slots included, and starts with a capital."""
    while match := _SLOT.search(template):
        template = template[: match.start()] + rng.choice(SLOTS[match[1]]) + template[match.end() :]
    return template[:1].upper() + template[1:]


def template_pattern(template: str) -> re.Pattern[str]:
    """A pattern that matches whatever `template` can say (and more): each slot is one to five words."""
    pieces = _SLOT.split(re.sub(r"[.,?!]", "", template))
    text = "".join(r"\w+(?:[' ]\w+){0,4}?" if i % 2 else re.escape(piece.lower()) for i, piece in enumerate(pieces))
    return re.compile(text)


def can_say(template: str, text: str) -> bool:
    """Whether `template` can produce exactly `text` (lower case, no punctuation)."""
    memo: dict[tuple[str, int], frozenset[int]] = {}

    def ends(piece: str, start: int) -> frozenset[int]:
        if (piece, start) not in memo:
            match = _SLOT.search(piece)
            literal = re.sub(r"[.,?!]", "", piece[: match.start()] if match else piece).lower()
            found: set[int] = set()
            if text.startswith(literal, start):
                middle = start + len(literal)
                if match:
                    inner = set().union(*(ends(option, middle) for option in SLOTS[match[1]]))
                    found = set().union(*(ends(piece[match.end() :], end) for end in inner))
                else:
                    found = {middle}
            memo[piece, start] = frozenset(found)
        return memo[piece, start]

    return len(text) in ends(template, 0)
