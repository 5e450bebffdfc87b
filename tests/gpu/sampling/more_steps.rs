//! Top-n-sigma, typical sampling, XTC and the dynamic temperature among the other steps, over lists and whole rows.

use super::rig::{Bits, List, Mask, Numbered, Row, cases, check, check_on, devices, rows};

const SETTINGS: [(&str, Mask, bool); 30] = [
    ("top_k=40;typ_p=0.9;top_p=0.95;min_p=0.05;xtc=0.5,0.1;temp=0.8", Mask::None, false),
    ("top_n_sigma=1;top_k=40;temp=0.8", Mask::None, false),
    ("top_n_sigma=1.5", Mask::None, false),
    ("logit_bias=3:4;temp=0.5;top_n_sigma=2;top_p=0.9", Mask::None, false),
    ("top_n_sigma=0.5;top_n_sigma=3;min_p=0.1", Mask::None, false),
    ("top_k=200;top_n_sigma=1;typ_p=0.7", Mask::None, false),
    ("top_n_sigma=1e-9;temp=2", Mask::None, false),
    ("top_n_sigma=1e30;top_k=7", Mask::None, false),
    ("top_p=0.9;top_n_sigma=1", Mask::None, false),
    ("typ_p=0.6", Mask::None, false),
    ("typ_p=0.3,5000", Mask::None, false),
    ("top_k=1000;typ_p=0,7;temp=1.3", Mask::None, false),
    ("temp=2;top_k=500;typ_p=0.95", Mask::None, false),
    ("top_k=30;typ_p=0.5;logit_bias=5:3,7:-2;typ_p=0.5", Mask::None, false),
    ("xtc=1,0.05", Mask::None, false),
    ("xtc=0.5,0.0001;temp=0.7", Mask::None, false),
    ("top_k=300;xtc=0.5,0.01", Mask::None, false),
    ("xtc=1,0;temp=2", Mask::None, false),
    ("top_k=20;xtc=1,0.02,15;min_p=0.1", Mask::None, false),
    ("top_k=50;xtc=1,0.01;top_p=0.5;dynatemp=1,0.9,1.5", Mask::None, false),
    ("typ_p=0.9;xtc=0.7,0.02;top_n_sigma=2;penalties=64,1.2,0.1,0.2", Mask::None, false),
    ("dynatemp=0.8,0.7,-0.5;temp=0.7;min_p=0.1", Mask::None, false),
    ("top_k=9;dynatemp=0.5,0.5,0.3;temp=0;dist", Mask::None, false),
    ("top_k=40;typ_p=0.9;xtc=0.5,0.05;temp=0.8", List(30), false),
    ("top_n_sigma=1;typ_p=0.9;dynatemp=1,0.5,1", List(600), false),
    ("top_n_sigma=1;top_k=40;xtc=1,0.1", Bits, false),
    ("top_k=100;trie;typ_p=0.8;xtc=1,0.02", Numbered(3), false),
    ("top_n_sigma=1.2;typ_p=0.8;dynatemp=1,0.5,1", Numbered(2), false),
    ("trie;logit_bias=6:4,3:-inf;top_n_sigma=1;typ_p=0.8", Numbered(3), false),
    ("top_n_sigma=1;xtc=1,0.1;greedy", Numbered(5), true),
];

fn of(rows: &[Row], names: &[&str]) -> Vec<Row> {
    rows.iter().filter(|(name, _)| names.contains(name)).cloned().collect()
}

#[test]
fn rows_that_fit_a_list_and_longer_ones() {
    check(&cases(&rows(513), &SETTINGS, 1), 30);
    let some =
        of(&rows(9000), &["gaussian 1", "gaussian 4", "runs of -inf", "few values, many ties", "+inf", "one huge"]);
    check_on(&devices()[..devices().len().min(1)], &cases(&some, &SETTINGS, 1), 30);
}

#[test]
#[ignore = "the whole matrix: the other steps on every row of every size"]
fn every_row() {
    // The second device has bindings of 16 MiB, which hold 27 of the longest rows.
    for (n, together) in [(511, 30), (5000, 30), (151_936, 25)] {
        check(&cases(&rows(n), &SETTINGS, 3), together);
    }
}
