//! A step's own rules: what would make a kernel read out of bounds is refused.

use tombolo_model::{Before, Capacity, Pass, Row, Sampling, Sequence, Step, StepError, Token};

const CAPACITY: Capacity = Capacity { rows: 4, sequences: 2, logits: 2, context: 70, blocks: 5 };

fn row(sequence: u32, position: u32) -> Row {
    Row { token: Token::Host(1), position, sequence, sample: None, draft: false }
}

fn step(rows: Vec<Row>) -> Step {
    let sequence = |blocks: &[u32]| Sequence { tables: vec![blocks.to_vec()] };
    Step { rows, sequences: vec![sequence(&[0, 3]), sequence(&[4])], ..Step::default() }
}

fn check(step: &Step) -> Result<(), StepError> {
    step.check(&CAPACITY, 1, 10, Before { rows: 1, drawn: 1 })
}

#[test]
fn a_mixed_step_is_accepted() {
    check(&step(vec![row(0, 31), row(0, 32), row(1, 0)])).unwrap();
    check(&step(vec![row(1, 0), row(0, 31)])).unwrap();
}

#[test]
fn every_broken_rule_is_named() {
    use StepError as E;
    let refused = |rows: Vec<Row>| check(&step(rows)).unwrap_err();
    assert_eq!(refused(vec![]), E::Empty);
    assert!(matches!(refused(vec![row(0, 0); 5]), E::TooLarge { rows: 5, .. }));
    assert!(matches!(refused(vec![row(0, 0), row(0, 2)]), E::Sequence { row: 1, .. }));
    assert!(matches!(refused(vec![row(0, 0), row(1, 0), row(0, 1)]), E::Sequence { row: 2, .. }));
    assert!(matches!(refused(vec![row(2, 0)]), E::Sequence { row: 0, .. }));
    assert!(matches!(refused(vec![row(0, 70)]), E::Position { .. }));
    assert!(matches!(refused(vec![row(0, 64)]), E::Block { position: 64, .. }));
    assert!(matches!(refused(vec![row(1, 32)]), E::Block { sequence: 1, .. }));
    let with = |token| refused(vec![Row { token, ..row(0, 0) }]);
    assert!(matches!(with(Token::Host(10)), E::Token { token: 10, .. }));
    assert!(matches!(with(Token::Prev(1)), E::Prev { index: 1, .. }));
    let logits = |n| step((0..n).map(|p| Row { sample: Some(Sampling::GREEDY), ..row(0, p) }).collect());
    check(&logits(2)).unwrap();
    assert!(matches!(check(&logits(3)), Err(E::TooLarge { logits: 3, .. })));
    let mut outside = step(vec![row(0, 0)]);
    outside.sequences[0].tables[0][1] = 5;
    assert!(matches!(check(&outside), Err(E::Block { .. })));
    outside.sequences[0].tables.clear();
    assert!(matches!(check(&outside), Err(E::Block { .. })));
}

#[test]
fn drafts_go_on_from_rows_that_were_run() {
    let with = |hidden: &[u32]| {
        let pass = Pass::Draft { hidden: hidden.to_vec() };
        Step { pass, ..step(vec![row(0, 0), row(0, 1)]) }.check(&CAPACITY, 1, 10, Before { rows: 3, drawn: 0 })
    };
    assert_eq!(with(&[2, 0]), Ok(()));
    assert_eq!(with(&[2, 3]), Err(StepError::Hidden { rows: 2, hidden: 2, left: 3 }));
    assert_eq!(with(&[2]), Err(StepError::Hidden { rows: 2, hidden: 1, left: 3 }));
    let left = step(vec![row(0, 0), Row { sample: Some(Sampling::GREEDY), ..row(0, 1) }]).left();
    assert_eq!(left, Before { rows: 2, drawn: 1 });
}
