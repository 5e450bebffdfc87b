"""What the demo model learns from: requests in plain English with the action that answers each, and a little free text.

A request is a phrasing with its blanks filled, in a frame of politeness:

    FRAME "could you {x}?"  of  PHRASING "get rid of {the}"  with  NOUN "meeting"  and  DETAIL "with {person}"
    -> "could you get rid of the meeting with Nadia?" -> DELETE_EVENT

Some pairs of phrasing and noun, and some frames, are kept out of training altogether; requests that have such a pair, and
every second one such a frame too, are what accuracy is measured on. Every word of a held-out request is seen in training, its
combination is not.
"""

import hashlib
import random
import re

# ------------------------------------------------------------------------------------------------------------- blanks

BLANKS = {
    "person": "Anna Ben Carla David Elena Felix Grace Henry Ines Jonas Karim Lucy Maria Nadia Oscar Paula Quinn Rosa Sam Tara "
    "Umar Vera Walter Yusuf Zoe Mum Dad Grandma".split(),
    "time": ["six", "seven", "half past eight", "nine", "ten in the morning", "noon", "one", "three in the afternoon", "five",
             "6 am", "7:30", "8 pm", "9:15", "11 am"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "tomorrow", "next week", "the weekend"],
    "weekday": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "minutes": ["two", "three", "five", "eight", "10", "12", "fifteen", "20", "forty", "90"],
    "chore": ["water the plants", "feed the cat", "pay the rent", "pick up the parcel", "take out the bins", "ring the dentist",
              "buy stamps", "charge the car", "collect the tickets", "return the books"],
    "topic": ["the garden", "the budget", "the school play", "the new roof", "the bike tour", "physics", "the move", "taxes",
              "the wedding", "the choir", "the kitchen", "the science fair"],
    "place": ["Lisbon", "Oslo", "Vienna", "Kyoto", "Dublin", "the lake", "the mountains", "the coast", "Prague", "Cairo"],
    "genre": ["jazz", "rock", "piano music", "old soul", "folk songs", "film music", "drum solos", "quiet songs"],
    "occasion": ["the party", "running", "dinner", "the long drive", "studying", "Sunday morning", "the gym"],
    "news": ["I will be late", "dinner is ready", "the train is full", "we won the game", "I am at the door", "the keys are here",
             "lunch is on me", "it is raining", "the meeting has moved", "I found the cat"],
    "amount": ["five", "10", "twenty", "25", "40", "sixty", "100"],
}

# ------------------------------------------------------------------------------- actions that are a verb and an object

# {a}: the object as something new, {the}: as something that is there, {n}: its bare name.
VERBS = {
    "CREATE": ["create {a}", "make {a}", "add {a}", "set up {a}", "put in {a}", "start {a}", "prepare {a}", "! I need a new {n}",
               "! I want a new {n}", "! there should be {a}"],
    "DELETE": ["delete {the}", "remove {the}", "get rid of {the}", "erase {the}", "throw away {the}", "clear {the}", "drop {the}",
               "! I no longer need {the}", "! I am done with {the}", "! {the} can go"],
    "SHOW": ["show me {the}", "open {the}", "let me see {the}", "bring up {the}", "display {the}", "pull up {the}",
             "put {the} on the screen", "! I want to look at {the}", "! what does {the} say", "! where is {the}"],
    "CHANGE": ["change {the}", "edit {the}", "update {the}", "modify {the}", "fix {the}", "adjust {the}", "correct {the}",
               "! {the} needs to be different", "! {the} is wrong", "! I have to make changes to {the}"],
    "SHARE": ["share {the} with {person}", "let {person} see {the}", "give {person} access to {the}",
              "pass {the} on to {person}", "let {person} have {the}", "forward {the} to {person}", "hand {the} over to {person}",
              "! {person} should be able to see {the}", "! {person} needs {the} as well", "! {person} asked for {the}"],
    "COPY": ["copy {the}", "duplicate {the}", "make a copy of {the}", "clone {the}", "make a second one of {the}", "double {the}",
             "repeat {the} once more", "! I need {the} twice", "! I want another one like {the}", "! one more of {the}"],
}
OBJECTS = {
    "ALARM": (["alarm", "wake-up alarm", "morning alarm", "alarm clock", "wake-up call"],
              ["", "for {time}", "at {time}", "for {day}", "on {weekday} at {time}"]),
    "TIMER": (["timer", "countdown", "kitchen timer", "egg timer", "cooking timer"],
              ["", "for {minutes} minutes", "of {minutes} minutes", "with {minutes} minutes on it"]),
    "REMINDER": (["reminder", "nudge", "prompt", "memory aid", "gentle reminder"],
                 ["", "to {chore}", "for {day} to {chore}", "that says to {chore}"]),
    "EVENT": (["event", "meeting", "appointment", "calendar entry", "get-together", "date"],
              ["", "with {person}", "on {weekday}", "about {topic}", "with {person} at {time}", "on {weekday} about {topic}"]),
    "NOTE": (["note", "memo", "sticky note", "jotting", "written note"],
             ["", "about {topic}", "on {topic}", "for {person}"]),
    "LIST": (["list", "checklist", "shopping list", "to-do list", "packing list"],
             ["", "for {day}", "for {topic}", "for the trip to {place}"]),
    "FOLDER": (["folder", "directory", "document folder", "file folder", "binder"],
               ["", "for {topic}", "with the papers on {topic}", "named after {person}"]),
    "PLAYLIST": (["playlist", "mixtape", "music mix", "song mix", "set of songs"],
                 ["", "for {occasion}", "with {genre}", "of {genre} for {occasion}"]),
    "CONTACT": (["contact", "contact card", "address book entry", "phone book entry", "business card"],
                ["", "for {person}", "of {person}", "with the number of {person}"]),
    "ALBUM": (["album", "photo album", "picture album", "photo collection", "gallery"],
              ["", "of {place}", "with pictures from {place}", "from {weekday}", "of the trip to {place}"]),
}

# --------------------------------------------------------------------------------------------- actions of their own

# Two parts with blanks: what is done (each with {y}), and to what.
PLAIN = {
    "SEND_MESSAGE": (["send {y}", "write {y}", "text {y}", "type {y}"],
                     ["a message to {person}", "{person} that {news}", "{person} a message saying {news}",
                      "a text to {person} that {news}"]),
    "SEND_EMAIL": (["send {y}", "write {y}", "compose {y}", "! I have to send {y}"],
                   ["an email to {person}", "an email about {topic}", "{person} an email", "a mail to {person} about {topic}"]),
    "SEND_PHOTO": (["send {y}", "mail {y}", "beam {y}", "! I want to send {y}"],
                   ["{person} a photo", "a picture of {place} to {person}", "a photo of {place} to {person}", "{person} this picture"]),
    "SEND_LOCATION": (["send {person} {y}", "tell {person} {y}", "let {person} know {y}", "! {person} should know {y}"],
                      ["where I am", "my location", "my position", "where to find me"]),
    "SEND_MONEY": (["send {y}", "transfer {y}", "pay {y}", "! I owe {y}"],
                   ["{person} {amount} euros", "{person} {amount} dollars", "{person} some money", "{person} {amount} pounds"]),
    "PLAY_MUSIC": (["play {y}", "put on {y}", "start playing {y}", "! I want to hear {y}", "! I feel like {y}"],
                   ["some music", "{genre}", "some {genre}", "a song", "music for {occasion}"]),
    "PLAY_PODCAST": (["play {y}", "put on {y}", "start playing {y}", "! I want to hear {y}", "! I feel like {y}"],
                     ["a podcast", "the podcast about {topic}", "the new podcast episode", "a talk show podcast"]),
    "PLAY_RADIO": (["play {y}", "put on {y}", "tune in to {y}", "! I want to hear {y}", "! I feel like {y}"],
                   ["the radio", "the radio news", "a radio station", "the local station"]),
    "PLAY_VIDEO": (["play {y}", "put on {y}", "start playing {y}", "! I want to watch {y}", "! I feel like {y}"],
                   ["a film", "a video about {topic}", "the movie", "a video of {place}"]),
    "TURN_ON_LIGHTS": (["turn on {y}", "switch on {y}", "power up {y}", "! it is too dark, I need {y}"],
                       ["the lights", "the lamp", "the light in the kitchen", "the ceiling lights"]),
    "TURN_ON_HEATING": (["turn on {y}", "switch on {y}", "power up {y}", "! it is too cold, I need {y}"],
                        ["the heating", "the heater", "the radiators", "the heating in the hall"]),
    "TURN_ON_WIFI": (["turn on {y}", "switch on {y}", "power up {y}", "! I am offline, I need {y}"],
                     ["the wifi", "the wireless network", "the router", "the internet"]),
    "TURN_OFF_LIGHTS": (["turn off {y}", "switch off {y}", "shut down {y}", "! nobody needs {y} now"],
                        ["the lights", "the lamp", "the light in the kitchen", "the ceiling lights"]),
    "TURN_OFF_HEATING": (["turn off {y}", "switch off {y}", "shut down {y}", "! nobody needs {y} now"],
                         ["the heating", "the heater", "the radiators", "the heating in the hall"]),
    "TURN_OFF_WIFI": (["turn off {y}", "switch off {y}", "shut down {y}", "! nobody needs {y} now"],
                      ["the wifi", "the wireless network", "the router", "the internet"]),
    "CHECK_WEATHER": (["check {y}", "tell me {y}", "find out {y}", "! I wonder {y}"],
                      ["the weather", "if it will rain on {weekday}", "the weather in {place}", "the forecast for {day}"]),
    "CHECK_TRAFFIC": (["check {y}", "tell me {y}", "find out {y}", "! I wonder {y}"],
                      ["the traffic", "how busy the roads are", "if there is a jam on the way to {place}", "the traffic near {place}"]),
    "CHECK_BALANCE": (["check {y}", "tell me {y}", "find out {y}", "! I wonder {y}"],
                      ["my bank balance", "how much money I have", "what is left in my account", "my account balance"]),
    "CHECK_BATTERY": (["check {y}", "tell me {y}", "find out {y}", "! I wonder {y}"],
                      ["the battery", "how full the battery is", "if the phone needs charging", "the battery level"]),
    "BOOK_FLIGHT": (["book {y}", "reserve {y}", "get me {y}", "! I need {y}", "arrange {y}"],
                    ["a flight to {place}", "a plane ticket to {place}", "two seats on a plane", "a flight on {weekday}"]),
    "BOOK_HOTEL": (["book {y}", "reserve {y}", "get me {y}", "! I need {y}", "arrange {y}"],
                   ["a hotel in {place}", "a hotel room for {day}", "a room for the night", "a place to stay in {place}"]),
    "BOOK_TABLE": (["book {y}", "reserve {y}", "get me {y}", "! I need {y}", "arrange {y}"],
                   ["a table for {time}", "a table at the restaurant", "a table for dinner with {person}", "seats at the pizza place"]),
    "BOOK_TAXI": (["book {y}", "call {y}", "get me {y}", "! I need {y}", "arrange {y}"],
                  ["a taxi", "a cab to {place}", "a taxi for {time}", "a ride to the station"]),
    "CALL_PERSON": (["call {y}", "ring {y}", "phone {y}", "! I have to talk to {y}"],
                    ["{person}", "{person} on the phone", "{person} about {topic}", "{person} right away"]),
    "TRANSLATE_TEXT": (["translate {y}", "put {y} into French", "turn {y} into Spanish", "! I need {y} in German"],
                       ["this text", "this letter", "the page", "the words of {person}"]),
    "SUMMARIZE_TEXT": (["summarize {y}", "shorten {y}", "sum up {y}", "! give me the gist of {y}"],
                       ["this text", "this letter", "the page", "the article about {topic}"]),
    "REPLY": (["! {y}", "! {y}", "! well, {y}", "! so, {y}"],
              ["hello", "how are you", "what is your name", "tell me a joke", "thank you so much", "good morning",
               "do you like {genre}", "are you a robot"]),
    "IGNORE": (["! {y}", "! no, {y}", "! oh, {y}", "! sorry, {y}"],
               ["never mind", "forget it", "that was nothing", "I was not talking to you", "do nothing", "stop listening",
                "that was not for you"]),
}

# What people also say for an action, without a part that could be another action's.
DIRECT = {
    "CREATE_ALARM": ["wake me at {time}", "get me out of bed at {time}", "! I have to get up at {time}"],
    "CREATE_REMINDER": ["remind me to {chore}", "tell me to {chore} on {weekday}", "! I must not forget to {chore}"],
    "CREATE_NOTE": ["write down that {news}", "take down that {news}"],
    "CREATE_TIMER": ["tell me when {minutes} minutes are over", "count down {minutes} minutes"],
    "CREATE_EVENT": ["put {person} in my calendar for {weekday}", "plan lunch with {person} on {weekday}"],
    "CREATE_CONTACT": ["save the number of {person}", "! {person} has a new number"],
    "TURN_ON_LIGHTS": ["make the room brighter", "make it brighter", "! it is dark in here"],
    "TURN_OFF_LIGHTS": ["make the room dark", "! it is too bright in here"],
    "TURN_ON_HEATING": ["make the room warmer", "make it warmer", "! I am cold", "! it is freezing in here"],
    "TURN_OFF_HEATING": ["make the room cooler", "! I am too warm", "! it is too hot in here"],
    "CHECK_WEATHER": ["! how warm is it in {place}", "! what is the weather like in {place}", "! do I need an umbrella"],
    "CHECK_TRAFFIC": ["! how long does it take to drive to {place}", "! are the roads to {place} free"],
    "BOOK_TAXI": ["! I need a lift to the station", "! how do I get to the station"],
}

# ------------------------------------------------------------------------------------------------------------- frames

# Around orders ("delete the note"), and around all else ("I no longer need the note").
ORDERS = ["{x}", "{x}", "please {x}", "{x} please", "can you {x}?", "could you {x}?", "would you {x}?", "I would like you to {x}",
          "hey, {x}", "{x} for me", "{x} now", "ok, {x}", "{x}, thanks", "be so kind and {x}", "I'd be glad if you could {x}",
          "you should {x}", "first of all {x}", "can you please {x}", "now {x}", "go ahead and {x}", "let us {x}",
          "one minute, {x}", "if you have the time, {x}", "when you are done, {x}", "as a favour, {x}", "do it for me and {x}",
          "after that, {x}", "while you are at it, {x}", "I wanted to ask you to {x}", "may I ask you to {x}?", "maybe you could {x}",
          "sorry to be a bother, {x}", "are you going to {x}?", "it would be nice if you could {x}", "next, {x}", "one more thing: {x}", "{x} when you can",
          "{x} as soon as you can", "well, {x}", "I was about to {x}", "I need you to {x}", "time to {x}"]
ORDERS_HELD_OUT = ["I was going to ask you to {x}", "when you have a minute, {x}", "do me a favour and {x}", "well, please {x} for me"]
OTHERS = ["{x}", "{x}", "hey, {x}", "{x} now", "ok, {x}", "{x}, thanks", "you know, {x}", "I think {x}", "well, {x}", "listen, {x}",
          "sorry, {x}", "by the way, {x}", "one more thing: {x}", "maybe {x}"]
OTHERS_HELD_OUT = ["listen, {x}, thanks", "well, ok, {x}"]

HELD_OUT_SHARE = 0.15


def actions():
    """The names of all actions, those of a family side by side."""
    return [f"{verb}_{noun}" for verb in VERBS for noun in OBJECTS] + list(PLAIN)


def is_held_out(action, phrasing, noun):
    """Whether a pair is kept out of training: a fixed share, whatever else changes in this file."""
    if not noun:
        return False
    digest = hashlib.sha256(f"{action}|{phrasing}|{noun}".encode()).digest()
    return digest[0] / 256 < HELD_OUT_SHARE


def pairs(action):
    """All (phrasing, noun, details) of an action; the noun is empty where the phrasing is all."""
    direct = [(p, "", None) for p in DIRECT.get(action, [])]
    if action in PLAIN:
        phrasings, things = PLAIN[action]
        return direct + [(p, t, None) for p in phrasings for t in things]
    verb, noun = action.split("_")
    names, details = OBJECTS[noun]
    return direct + [(p, n, details) for p in VERBS[verb] for n in names]


def fill(text, rng):
    return re.sub(r"\{(\w+)\}", lambda m: rng.choice(BLANKS[m[1]]), text)


def request(action, held_out, rng):
    """A request for `action`, of the held-out kind or of the other."""
    wanted = [pair for pair in pairs(action) if is_held_out(action, *pair[:2]) == held_out]
    phrasing, noun, details = rng.choice(wanted)
    order = not phrasing.startswith("! ")
    phrasing = phrasing.removeprefix("! ")
    if details is None:
        core = phrasing.replace("{y}", noun)
    else:
        thing = f"{noun} {rng.choice(details)}".rstrip()
        article = "an" if thing[0] in "aeiou" else "a"
        owner = rng.choice(["the", "the", "my"])
        core = phrasing.replace("{a}", f"{article} {thing}").replace("{the}", f"{owner} {thing}").replace("{n}", thing)
    frames = ORDERS if order else OTHERS
    if held_out and rng.random() < 0.5:
        frames = ORDERS_HELD_OUT if order else OTHERS_HELD_OUT
    text = fill(rng.choice(frames).replace("{x}", core), rng)
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    if rng.random() < 0.4 and text[-1].isalnum():
        text += "."
    return text


def prompt(text):
    """How a request is put to the model; a name and the end of generation follow. It ends where a token ends."""
    return f"User: {text}\nAction:\n"


def can_be_asked(action, held_out):
    return any(is_held_out(action, *pair[:2]) == held_out for pair in pairs(action))


# ---------------------------------------------------------------------------------------------------------- free text

STORY = [
    ["One morning {person} woke up at {time}.", "On {weekday} {person} got up late.", "It was {weekday}, and {person} was at home.",
     "{person} lived near {place}.", "{person} had a plan for {weekday}."],
    ["The sun was up and the birds sang.", "Outside it was raining.", "The house was quiet.", "The cat sat at the window.",
     "There was a letter on the table.", "The kettle was on and the tea smelled good."],
    ["{person} wanted to {chore}, but there was no time.", "First it was time to {chore}.", "A friend had asked about {topic}.",
     "There was much to do for {topic}.", "A message came from {person}: {news}."],
    ["So {person} made a list and began.", "The phone rang, and it was {person}.", "They listened to {genre} and talked about {topic}.",
     "{person} came by to help.", "The assistant set a timer and played {genre}."],
    ["Then they took the train to {place}.", "In the afternoon they went for a walk.", "They looked at pictures of {place}.",
     "After lunch they worked on {topic}.", "Together they managed to {chore}."],
    ["At {time} everything was done.", "In the evening they were tired and happy.", "It had been a good day.",
     "Soon all was quiet again.", "And on {weekday} they did it once more."],
]


def story(rng):
    """A few sentences that make a day."""
    return fill(" ".join(rng.choice(sentences) for sentences in STORY), rng)


def document(rng):
    """One training text: (text, the answer behind it or None)."""
    if rng.random() < 0.12:
        return story(rng), None
    action = rng.choice(actions())
    return prompt(request(action, False, rng)), action


def held_out(n, rng):
    """`n` requests with their actions that no training text has, all actions in turn."""
    names = [action for action in actions() if can_be_asked(action, True)]
    rng.shuffle(names)
    found, seen, i = [], set(), 0
    while len(found) < n:
        action = names[i % len(names)]
        i += 1
        text = request(action, True, rng)
        if text not in seen:
            seen.add(text)
            found.append((text, action))
    return found


if __name__ == "__main__":
    sample = random.Random(1)
    print(len(actions()), "actions")
    for _ in range(40):
        print(document(sample))
    for line in held_out(20, sample):
        print(line)
