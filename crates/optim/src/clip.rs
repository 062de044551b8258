//! Clipping by the norm of all gradients together.
//!
//! Source: Pascanu et al. 2013, arXiv:1211.5063; the 1e-6 is PyTorch's.

/// The factor that brings gradients of norm `norm` to at most `max_norm`; 1 when they are within it.
pub fn clip_factor(norm: f64, max_norm: f64) -> f32 {
    (max_norm / (norm + 1e-6)).min(1.0) as f32
}

#[cfg(test)]
mod tests {
    use super::clip_factor;

    #[test]
    fn only_long_gradients_shrink() {
        assert_eq!(clip_factor(0.3, 1.0), 1.0);
        assert_eq!(clip_factor(0.0, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
        assert_eq!(clip_factor(4.0, f64::INFINITY), 1.0);
    }
}
