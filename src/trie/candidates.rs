//! The mask over a list of candidates, as the samplers of a llama.cpp chain pass it from one to the next.
//!
//! The list may be the whole vocabulary in id order or what earlier samplers left of it, in any order; ids are unique.
//! Invariants: after the mask an illegal candidate is at minus infinity, and at least one legal one is not; the list is
//! written only at the end, so an error changes nothing.

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
    /// Its probability, 0 to 1, where a sampler has computed it.
    pub p: f32,
}

impl Candidate {
    fn weight(self) -> f32 {
        if self.logit.is_nan() { f32::NEG_INFINITY } else { self.logit }
    }
}

/// The result of [`Sieve::mask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Masked {
    /// Number of entries, from the first on, that are still candidates.
    pub size: usize,
    /// Where the candidate selected before is, or the likeliest legal one if it is masked; `None` if none was selected.
    pub selected: Option<usize>,
}

/// Bits of the filter, a power of two: 8 KiB stay in the first-level cache while a list of any length runs past.
const FILTER_BITS: usize = 1 << 16;

/// Masks the illegal tokens of candidate lists; holds the memory for that.
#[derive(Debug)]
pub struct Sieve {
    /// One bit for every legal token, indexed by the low bits of its id: excludes most candidates without a search. All
    /// zero between calls.
    filter: Box<[u64; FILTER_BITS / 64]>,
    /// The legal candidates, each with its place in the list.
    legal: Vec<(usize, Candidate)>,
}

impl Default for Sieve {
    fn default() -> Self {
        Sieve { filter: Box::new([0; FILTER_BITS / 64]), legal: Vec::new() }
    }
}

impl Sieve {
    /// Sets the logit of every candidate that is not among `legal` (ascending, not empty) to minus infinity, in its
    /// place. The legal ones keep place and logit; with [`Mode::Greedy`] the likeliest of them, on a tie that with the
    /// smallest id, is swapped with the first entry, and the list ends after it. Where no legal candidate is in the
    /// list, or all are at minus infinity, the first entry becomes the smallest legal token, and the list ends after
    /// it. `selected` is the place of the candidate that an earlier sampler selected.
    ///
    /// An empty list stays empty, as there is no place for that entry.
    pub fn mask(
        &mut self,
        candidates: &mut [Candidate],
        legal: &[Token],
        mode: Mode,
        selected: Option<usize>,
    ) -> Masked {
        let selected = selected.filter(|&at| at < candidates.len());
        self.legal.clear();
        if !self.look_up(candidates, legal) {
            self.scan(candidates, legal);
        }
        let ahead = |one: Candidate, best: Candidate| {
            one.weight() > best.weight() || (one.weight() == best.weight() && one.id < best.id)
        };
        let found = self.legal.iter().copied();
        let best = found.reduce(|best, one| if ahead(one.1, best.1) { one } else { best });
        let likeliest = best.filter(|(_, best)| best.weight() > f32::NEG_INFINITY).map(|(at, _)| at);

        for one in candidates.iter_mut() {
            one.logit = f32::NEG_INFINITY;
        }
        for &(at, one) in &self.legal {
            candidates[at].logit = one.logit;
        }
        let Some(likeliest) = likeliest else {
            let (Some(first), Some(&id)) = (candidates.first_mut(), legal.first()) else {
                return Masked { size: candidates.len(), selected: None };
            };
            *first = Candidate { id, logit: 0.0, p: 1.0 };
            return Masked { size: 1, selected: selected.map(|_| 0) };
        };
        if mode == Mode::Greedy {
            candidates.swap(0, likeliest);
            return Masked { size: 1, selected: selected.map(|_| 0) };
        }
        let is_legal = |place: usize| self.legal.iter().any(|&(at, _)| at == place);
        let selected = selected.map(|at| if is_legal(at) { at } else { likeliest });
        Masked { size: candidates.len(), selected }
    }

    /// Finds the legal candidates of a list in which each has its id as index, as in the whole vocabulary in id order;
    /// false, and nothing found, if one does not.
    fn look_up(&mut self, candidates: &[Candidate], legal: &[Token]) -> bool {
        for &token in legal {
            match usize::try_from(token).ok().and_then(|at| Some((at, *candidates.get(at)?))) {
                Some((at, one)) if one.id == token => self.legal.push((at, one)),
                _ => {
                    self.legal.clear();
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
        for (at, one) in candidates.iter().enumerate() {
            let (word, bit) = place(one.id);
            if self.filter[word] & bit != 0 && legal.binary_search(&one.id).is_ok() {
                self.legal.push((at, *one));
                if self.legal.len() == legal.len() {
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

    /// The rules said one after the other, on owned lists: the whole list, how much of it counts, what is selected.
    fn oracle(
        candidates: &[Candidate],
        legal: &[Token],
        mode: Mode,
        selected: Option<usize>,
    ) -> (Vec<Candidate>, usize, Option<usize>) {
        let possible = |one: &Candidate| legal.contains(&one.id) && one.logit > f32::NEG_INFINITY;
        let masked = |one: &Candidate| match legal.contains(&one.id) {
            true => *one,
            false => Candidate { logit: f32::NEG_INFINITY, ..*one },
        };
        let mut list: Vec<Candidate> = candidates.iter().map(masked).collect();
        let mut ranked: Vec<usize> = (0..list.len()).filter(|&at| possible(&candidates[at])).collect();
        ranked.sort_by(|&a, &b| {
            let (a, b) = (candidates[a], candidates[b]);
            b.logit.partial_cmp(&a.logit).unwrap().then(a.id.cmp(&b.id))
        });
        match (ranked.first(), mode) {
            (None, _) => {
                list[0] = Candidate { id: legal[0], logit: 0.0, p: 1.0 };
                (list, 1, selected.map(|_| 0))
            }
            (Some(&best), Mode::Greedy) => {
                list.swap(0, best);
                (list, 1, selected.map(|_| 0))
            }
            (Some(&best), _) => {
                let selected = selected.map(|at| if legal.contains(&candidates[at].id) { at } else { best });
                let size = list.len();
                (list, size, selected)
            }
        }
    }

    /// Bits, so that NaN equals itself.
    fn bits(list: &[Candidate]) -> Vec<(Token, u32, u32)> {
        list.iter().map(|one| (one.id, one.logit.to_bits(), one.p.to_bits())).collect()
    }

    fn compare(list: &[Candidate], legal: &[Token], mode: Mode, selected: Option<usize>) {
        let (expected, size, place) = oracle(list, legal, mode, selected);
        let mut sieve = Sieve::default();
        for round in 0..2 {
            let mut own = list.to_vec();
            let masked = sieve.mask(&mut own, legal, mode, selected);
            assert_eq!(bits(&own), bits(&expected), "round {round}: {list:?} {legal:?} {mode:?}");
            let (kept, wanted) = ((masked.size, masked.selected), (size, place));
            assert_eq!(kept, wanted, "round {round}: {list:?} {legal:?} {mode:?} {selected:?}");
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
    fn the_whole_vocabulary_and_its_permutations_are_masked_alike() {
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
        let masked = Sieve::default().mask(&mut [], &[4, 9], Mode::Sampled, None);
        assert_eq!(masked, Masked { size: 0, selected: None });
    }
}
