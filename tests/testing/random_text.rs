//! Random texts that look for trouble in tokenizers: everything splitters and merges treat differently, mixed.

/// A small generator (SplitMix64), so that the texts never change.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

const WORDS: &[&str] = &[
    "the",
    "Hello",
    "WORLD",
    "camelCase",
    "don't",
    "I'LL",
    "we'Re",
    "it's",
    "o'clock",
    "'S",
    "'ve",
    "'d",
    "'M",
    "naïve",
    "Straße",
    "ÉCOLE",
    "Привет",
    "мир",
    "ΑΒΓδε",
    "漢字",
    "かな",
    "カタカナ",
    "한국어",
    "ไทย",
    "हिन्दी",
    "עברית",
    "العربية",
    "ქართული",
    "ǅ",
    "ﬁ",
    "ß",
    "İi",
    "e\u{301}",
    "n\u{303}o",
    "\u{5d0}\u{5b8}",
    "IMGIMGABCZ",
    "sentinel",
    "return",
    "<html>",
    "foo_bar",
    "x86_64",
    "https://a.b/c?d=e&f",
    "🦙",
    "👩‍👩‍👧",
    "🇩🇪",
    "❤\u{fe0f}",
    "\u{1f3ff}",
    "½",
    "Ⅳ",
    "٣٤٥",
    "१२३",
    "𝟘𝟙",
    "𠀀",
    "々",
];
const SPACES: &[&str] = &[
    " ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t", "\u{a0}", "\u{3000}", "\u{2003}", "\u{2028}", "\u{85}",
    "\u{b}", "\u{c}", "\u{200b}", "\u{feff}", "\u{1680}",
];
const BREAKS: &[&str] = &["\n", "\r\n", "\n\n", "\r", " \n", "\n ", "\n\n\n\n", "\t\n"];
const SYMBOLS: &[&str] = &[
    "!", "?!", ".", ",", "...", "-", "—", "'", "\"", "''", "``", "(", ")", "[", "]", "{}", "<", ">", "<|", "|>", "=",
    "==", "+", "$", "€", "^", "~", "`", "|", "#", "@", "\\", "/", "//", "*", "&", "%", "_", "。", "，", "！", "？",
    "「", "»", "§", "±", "→", "☃", "▁", "▁▁", "。", "،", "।", "۔", "\u{ad}", "\u{0}", "\u{1}", "\u{7f}", "\u{fffd}",
];

/// A random text of a few to a few dozen parts. `breaks` allows line breaks, `bytes` invalid UTF-8.
pub fn text(random: &mut Random, specials: &[String], breaks: bool, bytes: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let most = 2 << random.below(5);
    for _ in 0..1 + random.below(most) {
        match random.below(24) {
            0..=6 => out.extend_from_slice(random.pick(WORDS).as_bytes()),
            7..=11 => out.extend_from_slice(random.pick(SPACES).as_bytes()),
            12..=14 => out.extend_from_slice(random.pick(SYMBOLS).as_bytes()),
            15 if breaks => out.extend_from_slice(random.pick(BREAKS).as_bytes()),
            16 => (0..1 + random.below(8)).for_each(|_| out.push(b'0' + random.below(10) as u8)),
            17 => (0..1 + random.below(12)).for_each(|_| out.push(b'A' + random.below(58) as u8)),
            18 if !specials.is_empty() => out.extend_from_slice(specials[random.below(specials.len())].as_bytes()),
            19 => {
                // Any code point, the planes in use more often.
                let limit = [0x250, 0x3000, 0x1_0000, 0x2_0000, 0x11_0000][random.below(5)];
                out.extend(char::from_u32(random.below(limit) as u32).map(String::from).unwrap_or_default().bytes());
            }
            20 => {
                // A run of one thing.
                let list = [SPACES, WORDS][random.below(2)];
                let (one, n) = (random.pick(list), 1 + random.below(20));
                out.extend_from_slice(one.repeat(n).as_bytes());
            }
            21 if bytes => (0..1 + random.below(4)).for_each(|_| out.push(random.bits() as u8)),
            22 => out.extend_from_slice(random.pick(WORDS).to_uppercase().as_bytes()),
            _ => out.extend_from_slice(random.pick(&["a", "e", " a", "in", "1", " 2", "'", "s"]).as_bytes()),
        }
    }
    if !breaks {
        out.retain(|&b| b != b'\n');
    }
    strip_beyond_unicode(&mut out);
    out
}

/// Other tokenizers abort on four-byte forms beyond U+10FFFF.
fn strip_beyond_unicode(text: &mut [u8]) {
    for i in 0..text.len() {
        if text[i] >= 0xf5 || (text[i] == 0xf4 && text.get(i + 1).is_some_and(|&b| b >= 0x90)) {
            text[i] = b'~';
        }
    }
}
