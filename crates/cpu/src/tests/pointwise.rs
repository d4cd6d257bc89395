//! Activations, soft caps, weighed sums: each tier gives the same bits, and those agree with f64.

use crate::experts::activate;
use crate::kernels::tests::Random;
use crate::kernels::{Kernels, Tier};
use tombolo_model::Activation;

const ACTIVATIONS: [Activation; 3] =
    [Activation::Silu, Activation::GeluTanh, Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 }];

fn exact(activation: Activation, gate: f32, up: f32) -> f64 {
    let (g, u) = (f64::from(gate), f64::from(up));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => g * sigmoid(g) * u,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            0.5 * g * (1.0 + inner.tanh()) * u
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (g, u) = (g.min(f64::from(limit)), u.clamp(-f64::from(limit), f64::from(limit)));
            g * sigmoid(f64::from(alpha) * g) * (u + 1.0)
        }
    }
}

/// Runs `f` in every tier; all must give the same bits.
fn in_every_tier(f: impl Fn(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let want = f(Kernels::of(Tier::Scalar).unwrap());
    for tier in Tier::available() {
        let got = f(Kernels::of(tier).unwrap());
        assert!(got.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{tier:?}");
    }
    want
}

fn close(got: &[f32], want: &[f64], most: f64) {
    let error: f64 = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum();
    let error = error / want.iter().map(|w| w * w).sum::<f64>();
    assert!(error <= most, "{error}");
}

#[test]
fn activations_agree() {
    let mut random = Random::new(3);
    for scale in [0.01, 1.0, 12.0] {
        let gate: Vec<f32> = random.values(101).iter().map(|x| x * scale).collect();
        let up: Vec<f32> = random.values(101).iter().map(|x| x * scale).collect();
        for activation in ACTIVATIONS {
            let got = in_every_tier(|kernels| {
                let mut out = vec![f32::NAN; 101];
                activate(kernels, activation, &gate, &up, &mut out);
                out
            });
            let want: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| exact(activation, g, u)).collect();
            close(&got, &want, 1e-12);
        }
    }
}

#[test]
fn extreme_activations_stay_numbers() {
    let gate = [0.0, 1e30, -1e30, 100.0, -100.0, f32::MAX, f32::MIN];
    for activation in ACTIVATIONS {
        let got = in_every_tier(|kernels| {
            let mut out = [f32::NAN; 7];
            activate(kernels, activation, &gate, &[0.5; 7], &mut out);
            out.to_vec()
        });
        assert!(got.iter().all(|x| x.is_finite()), "{activation:?}: {got:?}");
        assert!(got[2].abs() < 1e-3 && got[4].abs() < 1e-3, "{activation:?}: {got:?}");
    }
}

#[test]
fn caps_and_weighed_sums_agree() {
    let mut random = Random::new(5);
    let x: Vec<f32> = random.values(77).iter().map(|x| x * 90.0).collect();
    let got = in_every_tier(|kernels| {
        let mut out = x.clone();
        (kernels.softcap)(&mut out, 30.0);
        out
    });
    let want: Vec<f64> = x.iter().map(|&x| 30.0 * (f64::from(x) / 30.0).tanh()).collect();
    close(&got, &want, 1e-12);
    let ends = in_every_tier(|kernels| {
        let mut out = vec![1e30, -1e30, f32::INFINITY, 0.0];
        (kernels.softcap)(&mut out, 30.0);
        out
    });
    assert_eq!(ends, [30.0, -30.0, 30.0, 0.0]);

    let start = random.values(77);
    let got = in_every_tier(|kernels| {
        let mut out = start.clone();
        (kernels.add_scaled)(&mut out, &x, -0.3);
        out
    });
    let want: Vec<f64> =
        start.iter().zip(&x).map(|(&s, &x)| f64::from(s) + f64::from(x) * f64::from(-0.3f32)).collect();
    close(&got, &want, 1e-13);
}
