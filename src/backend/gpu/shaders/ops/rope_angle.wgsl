// Cosine and sine of a position's angle.
//
// A frequency is given in turns per position as a binary fraction of 64 bits, high word first. The product with a
// position is exact modulo whole turns, so the angle is as good at position 2^31 as at 1: the fraction of a turn has an
// error of 2^-32, and cosine and sine one below 3e-7 (measured: 1.5e-7).

fn rope_angle(position: i32, turns: vec2<u32>) -> vec2<f32> {
    let p = u32(abs(position));
    // The upper word of p * turns.y, by halves.
    let low = (p & 0xffffu) * (turns.y & 0xffffu);
    let one = (p >> 16u) * (turns.y & 0xffffu) + (low >> 16u);
    let two = (p & 0xffffu) * (turns.y >> 16u) + (one & 0xffffu);
    var fraction = p * turns.x + (p >> 16u) * (turns.y >> 16u) + (one >> 16u) + (two >> 16u);
    if (position < 0) {
        fraction = 0u - fraction;
    }
    // The nearest quarter turn, and what is left: at most an eighth to either side.
    let quarter = (fraction + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(fraction - (quarter << 30u))) * 1.4629180792671596e-9;
    let y = x * x;
    let s = x + x * y * (-1.6666667e-1 + y * (8.3333333e-3 + y * (-1.9841270e-4 + y * 2.7557319e-6)));
    let c = 1.0 + y * (-0.5 + y * (4.1666667e-2 + y * (-1.3888889e-3 + y * (2.4801587e-5 - y * 2.7557319e-7))));
    let swapped = select(vec2<f32>(c, s), vec2<f32>(-s, c), (quarter & 1u) != 0u);
    return select(swapped, -swapped, (quarter & 2u) != 0u);
}
