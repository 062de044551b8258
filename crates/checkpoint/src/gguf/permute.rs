//! The row order of GGUF's q and k projections, both ways.
//!
//! GGUF's `llama` files interleave the two rotary halves of each head (rows 2i and 2i + 1 are a pair); Hugging Face and
//! this program keep them apart (rows i and i + H/2 are a pair), H being the head dim.
//!
//! Shapes:  rows = N * H with N heads; H even. A bias is permuted like a weight whose rows have one element.
//! Checked: the two functions undo each other for any N and H (proptest).

/// The row of a GGUF tensor that is row `row` of the Hugging Face tensor.
pub const fn gguf_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (within % half) + within / half
}

/// The row of a Hugging Face tensor that is row `row` of the GGUF tensor.
pub const fn hugging_face_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    head * head_dim + (within % 2) * (head_dim / 2) + within / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_head_of_six_rows() {
        // Pairs (0,1) (2,3) (4,5) become halves 0 2 4 | 1 3 5.
        let order: Vec<usize> = (0..6).map(|row| gguf_row(row, 6)).collect();
        assert_eq!(order, [0, 2, 4, 1, 3, 5]);
    }

    proptest! {
        #[test]
        fn each_undoes_the_other(heads in 1usize..5, half in 1usize..40, pick: usize) {
            let head_dim = 2 * half;
            let row = pick % (heads * head_dim);
            prop_assert_eq!(hugging_face_row(gguf_row(row, head_dim), head_dim), row);
            prop_assert_eq!(gguf_row(hugging_face_row(row, head_dim), head_dim), row);
        }
    }
}
