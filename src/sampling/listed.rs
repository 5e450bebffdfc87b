//! The probabilities of llama.cpp's list, in its numbers: sums in f32 along its list, which are 1e-5 off where there
//! are many candidates, and its tokens depend on that. Only where its generator draws.

use super::candidate::Candidate;
use super::order::Order;
use super::pool::Pool;

/// The softmax of the list.
pub(super) struct Listed {
    best: f32,
    divisor: f32,
    sum: f32,
}

impl Listed {
    /// Of the list as it is, which is in [`Buffers::arranged`](super::pool::Buffers::arranged) afterwards. The pool has
    /// been scanned.
    pub(super) fn of(pool: &mut Pool<'_>) -> Listed {
        pool.arrange();
        let mut listed = Listed { best: pool.best() / pool.divisor, divisor: pool.divisor, sum: 0.0 };
        listed.sum = pool.buffers.arranged.iter().map(|one| listed.exponential(one)).sum();
        listed
    }

    /// Of the list sorted best first.
    pub(super) fn sorted(pool: &mut Pool<'_>) -> Listed {
        pool.order = Order::Logit;
        Listed::of(pool)
    }

    /// The weight that a draw by weights adds up.
    pub(super) fn exponential(&self, one: &Candidate) -> f32 {
        (one.logit / self.divisor - self.best).exp()
    }

    pub(super) fn probability(&self, one: &Candidate) -> f32 {
        self.exponential(one) / self.sum
    }

    /// The entropy of the list; candidates of no probability add nothing.
    pub(super) fn entropy(&self, list: &[Candidate]) -> f32 {
        let probabilities = list.iter().map(|one| self.probability(one)).filter(|p| *p > 0.0);
        probabilities.map(|p| -p * p.ln()).sum()
    }
}

/// Ranges that quicksort leaves to the insertion sort.
const SHORT: usize = 16;

/// Sorts by logit, the least first, and leaves equal ones in the order in which the C++ library of llama.cpp's builds
/// for Linux (libstdc++) leaves them: `std::sort` there is a quicksort with the median of three, a heap sort of ranges
/// that it splits badly (Musser, "Introspective Sorting and Selection Algorithms", 1997), then an insertion sort, which
/// is stable.
pub(super) fn sort_ascending(list: &mut [Candidate]) {
    partition(list, 2 * list.len().checked_ilog2().unwrap_or(0));
    for at in 1..list.len() {
        let one = list[at];
        let mut gap = at;
        while gap > 0 && list[gap - 1].logit > one.logit {
            list[gap] = list[gap - 1];
            gap -= 1;
        }
        list[gap] = one;
    }
}

/// The quicksort, `depth` levels down to short ranges.
fn partition(mut list: &mut [Candidate], mut depth: u32) {
    while list.len() > SHORT {
        if depth == 0 {
            return heap_sort(list);
        }
        depth -= 1;
        let (mid, last) = (list.len() / 2, list.len() - 1);
        let less = |a: usize, b: usize| list[a].logit < list[b].logit;
        let median = match (less(1, mid), less(mid, last), less(1, last)) {
            (true, true, _) | (false, false, false) => mid,
            (true, false, true) | (false, true, false) => last,
            (true, false, false) | (false, _, true) => 1,
        };
        list.swap(0, median);
        let pivot = list[0].logit;
        let (mut low, mut high) = (1, list.len());
        let cut = loop {
            while list[low].logit < pivot {
                low += 1;
            }
            high -= 1;
            while pivot < list[high].logit {
                high -= 1;
            }
            if low >= high {
                break low;
            }
            list.swap(low, high);
            low += 1;
        };
        let (left, right) = list.split_at_mut(cut);
        partition(right, depth);
        list = left;
    }
}

fn heap_sort(list: &mut [Candidate]) {
    for top in (0..list.len() / 2).rev() {
        sift(list, top, list[top]);
    }
    for end in (1..list.len()).rev() {
        let value = list[end];
        list[end] = list[0];
        sift(&mut list[..end], 0, value);
    }
}

/// Writes `value` into the heap below `top`: the gap goes down to a leaf along the greater children, then up to its
/// place.
fn sift(heap: &mut [Candidate], top: usize, value: Candidate) {
    let mut gap = top;
    while 2 * gap + 1 < heap.len() {
        let right = 2 * gap + 2;
        let left_is_greater = heap.get(right).is_none_or(|right| right.logit < heap[2 * gap + 1].logit);
        let child = if left_is_greater { right - 1 } else { right };
        heap[gap] = heap[child];
        gap = child;
    }
    while gap > top && heap[(gap - 1) / 2].logit < value.logit {
        heap[gap] = heap[(gap - 1) / 2];
        gap = (gap - 1) / 2;
    }
    heap[gap] = value;
}
