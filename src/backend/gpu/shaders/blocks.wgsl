// The blocks of matrix instructions: BLOCK by BLOCK numbers in the hands of a subgroup.

//#if BLOCK_8
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sums = coop_mat8x8<f32, C>;
//#else
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;
//#endif
