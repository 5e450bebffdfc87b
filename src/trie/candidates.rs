//! The mask over a list of candidates, as the samplers of a foreign chain hand it from one to the next.
//!
//! The list may be the whole vocabulary in id order or whatever earlier samplers left of it, in any order; ids are
//! unique. Invariants: what stays keeps its order, so a list that was sorted still is; at least one candidate stays, and
//! all that stay are legal; the list is written only when everything is known, so a fault on the way changes nothing.

use super::Mode;
use crate::Token;

/// One candidate, laid out as the chains of llama.cpp have it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: Token,
    /// Its logit. NaN counts as minus infinity.
    pub logit: f32,
    /// Its probability, where a sampler just computed one.
    pub p: f32,
}

impl Candidate {
    fn weight(self) -> f32 {
        if self.logit.is_nan() { f32::NEG_INFINITY } else { self.logit }
    }
}

/// What [`Sieve::keep`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// How many candidates there are now, at the front of the list.
    pub size: usize,
    /// Where the candidate selected before is, or the likeliest one if it is gone; `None` if none was selected.
    pub selected: Option<usize>,
}

/// Bits of the filter, a power of two: 8 KiB stay in the first-level cache while a list of any length runs past.
const FILTER_BITS: usize = 1 << 16;

/// Takes the illegal tokens out of candidate lists; holds the memory for that.
#[derive(Debug)]
pub struct Sieve {
    /// One bit for every legal token, at the low bits of its id: says for most candidates, without a search, that they
    /// are not legal. All zero between calls.
    filter: Box<[u64; FILTER_BITS / 64]>,
    kept: Vec<Candidate>,
}

impl Default for Sieve {
    fn default() -> Self {
        Sieve { filter: Box::new([0; FILTER_BITS / 64]), kept: Vec::new() }
    }
}

impl Sieve {
    /// Leaves only candidates that are among `legal` (ascending, not empty): with [`Mode::Greedy`] the likeliest one, on
    /// a tie that with the smallest id, else all of them. Where no legal candidate is left, or all are at minus
    /// infinity, the list becomes one entry, the smallest legal token. `selected` is the place of the candidate that an
    /// earlier sampler selected.
    ///
    /// An empty list stays empty, as there is no place for that entry.
    pub fn keep(&mut self, candidates: &mut [Candidate], legal: &[Token], mode: Mode, selected: Option<usize>) -> Kept {
        let chosen = selected.and_then(|at| candidates.get(at)).map(|one| one.id);
        self.kept.clear();
        if !self.look_up(candidates, legal) {
            self.scan(candidates, legal);
        }
        let ahead = |one: Candidate, best: Candidate| {
            one.weight() > best.weight() || (one.weight() == best.weight() && one.id < best.id)
        };
        let best = self.kept.iter().copied().reduce(|best, one| if ahead(one, best) { one } else { best });
        match (best.filter(|best| best.weight() > f32::NEG_INFINITY), legal) {
            (None, &[smallest, ..]) => {
                self.kept.clear();
                self.kept.push(Candidate { id: smallest, logit: 0.0, p: 1.0 });
            }
            (Some(best), _) if mode == Mode::Greedy => {
                self.kept.clear();
                self.kept.push(best);
            }
            _ => {}
        }
        let place = |id: Token| self.kept.iter().position(|one| one.id == id);
        let selected = chosen.map(|id| place(id).or_else(|| place(best?.id)).unwrap_or(0));
        let size = self.kept.len().min(candidates.len());
        for (slot, one) in candidates.iter_mut().zip(&self.kept) {
            *slot = *one;
        }
        Kept { size, selected }
    }

    /// The legal candidates of a list in which each stands at the place of its id, as in the whole vocabulary in id
    /// order; false, and nothing kept, if one does not.
    fn look_up(&mut self, candidates: &[Candidate], legal: &[Token]) -> bool {
        for &token in legal {
            match usize::try_from(token).ok().and_then(|at| candidates.get(at)) {
                Some(one) if one.id == token => self.kept.push(*one),
                _ => {
                    self.kept.clear();
                    return false;
                }
            }
        }
        true
    }

    /// The legal candidates of any list.
    fn scan(&mut self, candidates: &[Candidate], legal: &[Token]) {
        let place = |token: Token| {
            let bit = token as usize % FILTER_BITS;
            (bit / 64, 1 << (bit % 64))
        };
        for &token in legal {
            let (word, bit) = place(token);
            self.filter[word] |= bit;
        }
        for one in candidates {
            let (word, bit) = place(one.id);
            if self.filter[word] & bit != 0 && legal.binary_search(&one.id).is_ok() {
                self.kept.push(*one);
                if self.kept.len() == legal.len() {
                    break;
                }
            }
        }
        for &token in legal {
            self.filter[place(token).0] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rules said one after the other, on owned lists.
    fn oracle(
        candidates: &[Candidate],
        legal: &[Token],
        mode: Mode,
        selected: Option<usize>,
    ) -> (Vec<Candidate>, Option<usize>) {
        let hopeless = |one: &Candidate| one.logit.is_nan() || one.logit == f32::NEG_INFINITY;
        let mut left: Vec<Candidate> = candidates.iter().filter(|one| legal.contains(&one.id)).copied().collect();
        if left.iter().all(hopeless) {
            left = vec![Candidate { id: legal[0], logit: 0.0, p: 1.0 }];
        }
        let mut ranked: Vec<Candidate> = left.iter().filter(|one| !hopeless(one)).copied().collect();
        ranked.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap().then(a.id.cmp(&b.id)));
        if mode == Mode::Greedy {
            left = vec![ranked[0]];
        }
        let at = |id| left.iter().position(|one: &Candidate| one.id == id);
        let selected = selected.map(|place| at(candidates[place].id).or(at(ranked[0].id)).unwrap());
        (left, selected)
    }

    /// Bits, so that NaN equals itself.
    fn bits(list: &[Candidate]) -> Vec<(Token, u32, u32)> {
        list.iter().map(|one| (one.id, one.logit.to_bits(), one.p.to_bits())).collect()
    }

    fn compare(list: &[Candidate], legal: &[Token], mode: Mode, selected: Option<usize>) {
        let (expected, place) = oracle(list, legal, mode, selected);
        let mut sieve = Sieve::default();
        for round in 0..2 {
            let mut own = list.to_vec();
            let kept = sieve.keep(&mut own, legal, mode, selected);
            assert_eq!(bits(&own[..kept.size]), bits(&expected), "round {round}: {list:?} {legal:?} {mode:?}");
            assert_eq!(kept.selected, place, "round {round}: {list:?} {legal:?} {mode:?} {selected:?}");
        }
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => (-3..3_i8).prop_map(f32::from),
            4 => -9.0..9.0_f32,
            1 => Just(f32::NEG_INFINITY),
            1 => Just(f32::NAN),
            1 => Just(-0.0),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_the_rules(
            logits in prop::collection::vec(logit(), 1..60),
            legal in prop::collection::btree_set(prop_oneof![0..60, 65_530..65_600, Just(131_077)], 1..12),
            order in 0..3_u8,
            drop in prop::collection::vec(any::<bool>(), 60),
            shift in prop_oneof![Just(0), Just(65_536)],
            greedy: bool,
            selected: Option<prop::sample::Index>,
            seed: u64,
        ) {
            let mut list: Vec<Candidate> = (0..).zip(&logits)
                .map(|(id, &logit)| Candidate { id: id + if id % 5 == 4 { shift } else { 0 }, logit, p: id as f32 })
                .collect();
            if order > 0 {
                list = list.into_iter().zip(drop).filter_map(|(one, drop)| (!drop).then_some(one)).collect();
            }
            match order {
                1 => list.sort_by(|a, b| b.logit.total_cmp(&a.logit)),
                2 => list.sort_by_key(|one| (one.id as u64 + 1).wrapping_mul(seed | 1)),
                _ => {}
            }
            prop_assume!(!list.is_empty());
            let selected = selected.map(|index| index.index(list.len()));
            let mode = if greedy { Mode::Greedy } else { Mode::Sampled };
            compare(&list, &legal.into_iter().collect::<Vec<_>>(), mode, selected);
        }
    }

    #[test]
    fn the_whole_vocabulary_and_its_permutations_keep_the_same() {
        let legal: Vec<Token> = (0..200).map(|i| i * 751 + 3).collect();
        let mut list: Vec<Candidate> =
            (0..151_936).map(|id| Candidate { id, logit: ((id * 37) % 1009) as f32, p: 0.0 }).collect();
        for mode in [Mode::Greedy, Mode::Sampled] {
            compare(&list, &legal, mode, None);
            list.sort_by(|a, b| b.logit.total_cmp(&a.logit));
            compare(&list, &legal, mode, Some(7));
            list.truncate(1000);
            compare(&list, &legal, mode, Some(7));
            list = (0..151_936).map(|id| Candidate { id, logit: ((id * 37) % 1009) as f32, p: 0.0 }).collect();
        }
    }

    #[test]
    fn an_empty_list_stays_empty() {
        let kept = Sieve::default().keep(&mut [], &[4, 9], Mode::Sampled, None);
        assert_eq!(kept, Kept { size: 0, selected: None });
    }
}
