//! How two sets of logits are compared.

/// What sets one run apart from the oracle over all rows compared.
#[derive(Debug, Clone, Copy)]
pub struct Distance {
    /// Largest absolute difference of a logit.
    pub max: f64,
    /// Root mean square of the difference over the standard deviation of the oracle's logits.
    pub relative_rms: f64,
}

/// The distance of `got` from `oracle`, row by row. Panics when a row is missing, short or not finite.
pub fn distance(got: &[Vec<f64>], oracle: &[Vec<f64>]) -> Distance {
    assert_eq!(got.len(), oracle.len(), "rows");
    let (mut max, mut squares, mut count) = (0.0f64, 0.0, 0usize);
    let (mut sum, mut sum_squares) = (0.0, 0.0);
    for (row, (g, o)) in got.iter().zip(oracle).enumerate() {
        assert_eq!(g.len(), o.len(), "length of row {row}");
        for (id, (&a, &b)) in g.iter().zip(o).enumerate() {
            assert!(a.is_finite() && b.is_finite(), "row {row}, token {id}: {a} and {b}");
            max = max.max((a - b).abs());
            squares += (a - b) * (a - b);
            sum += b;
            sum_squares += b * b;
            count += 1;
        }
    }
    let n = count as f64;
    let std = (sum_squares / n - (sum / n) * (sum / n)).sqrt();
    Distance { max, relative_rms: (squares / n).sqrt() / std }
}

/// The ids of the largest and second largest value (ties to the lowest id) and the gap between them.
pub fn top2(row: &[f64]) -> (usize, usize, f64) {
    let mut first = 0;
    for (i, &v) in row.iter().enumerate() {
        if v > row[first] {
            first = i;
        }
    }
    let mut second = usize::from(first == 0);
    for (i, &v) in row.iter().enumerate() {
        if i != first && v > row[second] {
            second = i;
        }
    }
    (first, second, row[first] - row[second])
}

/// Checks that the argmax of `got` is the oracle's in every row whose top-2 gap is above four times that row's
/// largest `|yardstick - oracle|`. Returns how many rows were decided by it.
pub fn check_argmax(got: &[Vec<f64>], oracle: &[Vec<f64>], yardstick: &[Vec<f64>]) -> usize {
    let mut decided = 0;
    for (row, ((g, o), y)) in got.iter().zip(oracle).zip(yardstick).enumerate() {
        let (best, _, gap) = top2(o);
        let noise = y.iter().zip(o).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        if gap > 4.0 * noise {
            decided += 1;
            assert_eq!(top2(g).0, best, "row {row}: the oracle's top token leads by {gap}, noise is {noise}");
        }
    }
    decided
}

/// A row of logits in `f64`.
pub fn widen(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&v| f64::from(v)).collect()
}
