//! The layout of the sampler's buffers, for Rust and the shaders.
//!
//! All buffers are arrays of 32-bit words with a part of equal size for each sequence.

/// Defines constants, and a table of them by name for the shaders.
macro_rules! constants {
    ($table:ident: $ty:ty { $($(#[$doc:meta])* $name:ident = $value:expr;)* }) => {
        $($(#[$doc])* pub(super) const $name: $ty = $value;)*
        const $table: &[(&str, $ty)] = &[$((stringify!($name), $name)),*];
    };
}

constants!(PLACES: usize {
    /// Sequences at most: a uniform holds them all.
    ROWS = 64;
    /// The most workgroups that share a row. One invocation for each reads their results, and a workgroup has at least
    /// as many.
    GROUPS = 64;
    /// Candidates that one workgroup can sort; two words each fit 12 KiB of workgroup memory.
    LIST = 1536;
    /// Bins of the distance from the best logit; three words each fit 12 KiB of workgroup memory.
    BINS = 1024;
    /// The largest window of penalties and of DRY in tokens.
    WINDOW = 1024;
    /// Tokens of the history; those beyond [`WINDOW`] allow for rollbacks.
    RING = 2 * WINDOW;
    /// Steps of a chain.
    MAX_OPS = 16;
    /// Words of a step.
    OP_WORDS = 8;
    /// Candidates reported at most.
    REPORT = 64;
    /// Words of a result.
    RESULT_WORDS = 8;

    // `spec`: the head of a sequence, its steps, the steps under a mask that is followed greedily. Tables of biases and
    // of DRY follow after all sequences.
    SPEC_PATH = 0;
    SPEC_OPS = 1;
    SPEC_FIRST = 2;
    SPEC_FORCED_OPS = 3;
    SPEC_SEED = 4;
    SPEC_REPORT = 6;
    SPEC_TRIE_FIRST = 7;
    SPEC_MASSES = 8;
    SPEC_MASS_SCALE = 9;
    SPEC_BIN_SCALE = 10;
    SPEC_SCALE = 11;
    /// Always 0; the shader compiler must not know that.
    SPEC_ZERO = 12;
    SPEC_FIRST_SCALE = 13;
    /// The most candidates that are returned to the host; 0 where the device samples a token.
    SPEC_HAND_OVER = 14;
    /// How many standard deviations the first step keeps, above 0; 0 where it is another step.
    SPEC_SPREADS = 15;
    /// Where a mask of bits applies as the row is read: bit 0 where the chain runs, bit 1 where it is followed
    /// greedily.
    SPEC_READS_MASKED = 16;
    SPEC_OPS_AT = 17;
    SPEC_WORDS = SPEC_OPS_AT + 2 * MAX_OPS * OP_WORDS;

    // `children`: of each sequence a head, and ids (ascending); after all sequences the masks of bits.
    CHILD_KIND = 0;
    CHILD_COUNT = 1;
    CHILD_FIRST = 2;
    CHILD_GREEDY = 3;
    /// The first word of a mask's bits, in the whole buffer.
    CHILD_MASK_AT = 4;
    CHILD_DATA = 5;

    // `state`: what is kept from step to step, what one kernel passes to the next, the report, the history.
    STATE_TOKEN = 0;
    STATE_POSITION = 1;
    STATE_COUNT = 2;
    STATE_MODE = 3;
    STATE_STATUS = 4;
    STATE_TOLD = 5;
    STATE_CUT = 6;
    STATE_SCALE = 8;
    STATE_BEST = 9;
    STATE_REPORTED = 10;
    STATE_N_RANGES = 11;
    STATE_N_LISTED = 12;
    STATE_LOWEST = 13;
    /// Ranges of bins: one boundary per step and one for the report.
    RANGES = MAX_OPS + 1;
    RANGE_WORDS = 5;
    STATE_RANGES = 16;
    STATE_REPORT = (STATE_RANGES + (RANGES + 1) * RANGE_WORDS).next_multiple_of(16);
    REPORT_WORDS = 4;
    STATE_RING = STATE_REPORT + REPORT * REPORT_WORDS;
    STATE_WORDS = STATE_RING + RING;

    // `bins`: counts, low and high halves of weights, how many candidates are collected, and what the standard
    // deviation is made of.
    APPENDED = 3 * BINS;
    SPREAD = APPENDED + 1;
    SPREAD_WORDS = 5;
    BINS_WORDS = APPENDED + 16;

    // `work`: the results of the workgroups that share the row, then candidates as (rank, token).
    PARTIAL_WORDS = 8;
    CANDIDATES_AT = GROUPS * PARTIAL_WORDS;
    WORK_WORDS = CANDIDATES_AT + 2 * LIST;

    // `out`: a token per sequence for the embedding of the next step, then the results.
    RESULTS_AT = ROWS;
    OUT_WORDS = RESULTS_AT + ROWS * RESULT_WORDS;
});

constants!(KINDS: u32 {
    /// The best candidate is the token.
    PATH_GREEDY = 0;
    /// All candidates, or those from a fixed distance of the best, are drawn from.
    PATH_DIRECT = 1;
    /// The chain runs over bins and lists.
    PATH_SELECT = 2;
    /// The chain runs over a mask's tokens only.
    PATH_CHILDREN = 3;
    /// The chain runs over the row in one workgroup.
    PATH_ROW = 4;

    OP_BIAS = 1;
    OP_PENALTIES = 2;
    OP_TOP_K = 3;
    OP_TOP_P = 4;
    OP_MIN_P = 5;
    OP_SCALE = 6;
    OP_SCALE_BY = 7;
    OP_DYNAMIC = 8;
    OP_TRIE = 9;
    OP_SIGMA = 10;
    OP_TYPICAL = 11;
    OP_XTC = 12;
    OP_DRY = 13;

    /// The draws of a position.
    DRAW_TOKEN = 0;
    DRAW_XTC = 1;

    CHILDREN_NONE = 0;
    CHILDREN_LIST = 1;
    CHILDREN_MASK = 2;

    /// The token is published.
    MODE_DONE = 0;
    MODE_FAILED = 1;
    /// All that is left is collected.
    MODE_LIST = 2;
    /// The candidates that decide where the chain cuts are collected.
    MODE_CUT = 3;
    /// Neither could be.
    MODE_EXACT = 4;
    /// The cut is known and the token is to be drawn from the row.
    MODE_DRAW = 5;

    STATUS_OK = 0;
    STATUS_NAN = 1;
    STATUS_NONE = 2;
});

/// The constants of the shaders, for workgroups of so many invocations.
pub(crate) fn constants(threads: u32) -> Vec<(&'static str, u32)> {
    let places = PLACES.iter().map(|&(name, place)| (name, place as u32));
    [("THREADS", threads)].into_iter().chain(places).chain(KINDS.iter().copied()).collect()
}

/// The words of one sequence that a walk reads and writes, and the indices of some of them.
pub(crate) struct WalkedWords {
    pub children: Vec<u32>,
    pub state: Vec<u32>,
    pub out: Vec<u32>,
    /// The result's first word in `out`.
    pub results: usize,
    /// Words of `state`.
    pub position: usize,
    pub count: usize,
    pub ring: usize,
}

/// All zero.
pub(crate) fn walked_words() -> WalkedWords {
    let [children, state, out] = [CHILD_DATA + LIST, STATE_WORDS, OUT_WORDS].map(|words| vec![0; words]);
    let (results, position, count, ring) = (RESULTS_AT, STATE_POSITION, STATE_COUNT, STATE_RING);
    WalkedWords { children, state, out, results, position, count, ring }
}
