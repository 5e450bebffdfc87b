//! How blocks around instructions are written.

/// Wraps expressions that only need the instructions of the token.
macro_rules! have {
    ($e:expr) => {
        // SAFETY: the token proves that the processor has the instructions; no memory is touched.
        unsafe { $e }
    };
}

/// Wraps loads and stores, whose pointer the caller vouches for.
macro_rules! memory {
    ($e:expr) => {
        // SAFETY: the token proves the instructions, the caller that the pointer is good for the bytes named.
        unsafe { $e }
    };
}

/// An expression for each of the four registers.
macro_rules! four {
    ($q:ident => $e:expr) => {{
        #[allow(non_upper_case_globals)]
        let all = [
            {
                const $q: usize = 0;
                $e
            },
            {
                const $q: usize = 1;
                $e
            },
            {
                const $q: usize = 2;
                $e
            },
            {
                const $q: usize = 3;
                $e
            },
        ];
        all
    }};
}

/// A block for each number, written out: the compiler does not unroll loops around `asm!`.
macro_rules! each {
    ($i:ident in [$($n:literal)*] $body:block) => {
        {
            $({
                #[allow(non_upper_case_globals)]
                const $i: usize = $n;
                $body
            })*
        }
    };
}

/// Has registers computed and memory read here, not later: the compiler would hold more than there are registers for.
macro_rules! computed {
    ($($x:expr),*) => {
        // SAFETY: there is no instruction, and the registers stay as they are.
        unsafe {
            asm!(concat!("//", $(computed!(@ $x)),*), $(inout(vreg) $x,)* options(nostack, preserves_flags))
        }
    };
    (@ $x:expr) => {
        " {:v}"
    };
}

/// A vector shifted left by a number known when compiled, right where negative.
macro_rules! shifted {
    ($x:expr, $by:expr, $left:ident $right:ident, $($n:literal)*) => {
        match $by {
            0 => $x,
            $($n => $left::<$n>($x),)*
            $(by if by == -$n => $right::<$n>($x),)*
            _ => unreachable!(),
        }
    };
}
