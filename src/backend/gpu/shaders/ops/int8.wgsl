// The place of batch rows that are quantised to bytes, for products by integer dot products.
//
// 32 values of a row along K are three vec4s: two of codes, signed bytes four a word in order, then the scale of the codes and
// the sums of the first and the last 16 of them. A value is its code times the scale, which is the greatest size of the 32 over
// 127. The order is group, vec4, row: those of rows next to each other are neighbours.

const INT8_QUADS: u32 = 3u;

fn int8_at(first: u32, stride: u32, row: u32, group: u32) -> u32 {
    return first + group * INT8_QUADS * stride + row;
}
