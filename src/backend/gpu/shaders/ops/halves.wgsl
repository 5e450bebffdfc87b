// The place of batch rows that are halves, for products by matrix instructions.
//
// 32 values of a row along K are four vec4s of f16, two a word in order. The order is group, vec4, row: those of rows next to each
// other are neighbours. After them is a vec4 for each row, of which the first number is the row's factor: a value is its half
// times that, a power of two by which the largest half of a row is 2^13 to 2^14.

const HALVES_QUADS: u32 = 4u;

fn halves_at(first: u32, stride: u32, row: u32, quad: u32) -> u32 {
    return first + quad * stride + row;
}
