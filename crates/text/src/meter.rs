//! Metering of templates. minijinja charges fuel for instructions and for what they create, but not for what they only
//! look at: comparing or printing a list that holds itself twice, twenty deep, would never end. So a template's syntax
//! tree is rebuilt with a charge around every operand that is looked at as a whole:
//!
//! * [`Use::Whole`]: compared, printed, filtered, put in a list: everything inside is paid for.
//! * [`Use::Text`]: indexed: a string is paid for, a list or map costs nothing.
//! * [`Use::List`]: sliced or iterated over: a string is paid for, and a list's slots.
//! * [`Use::Move`]: assigned or tested for truth: nothing is looked at.
//!
//! Lazy lists (slices, reversals) are made real before anything is built on them: chains of them cost more the longer
//! they are. What a charge does is at the end; the names of the charges cannot be spelled in a template.

use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Call, CallArg, CallBlock, Compare, CompareOp, Const, Do, EmitExpr, EmitRaw, Expr,
    Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro, Map, Set, SetBlock, Slice, Spanned,
    Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits;

/// The filter that charges for a whole value.
const WHOLE: &str = "\0whole";
/// The filter that makes a lazy list real.
const LIST: &str = "\0list";
/// The filter that lets numbers and strings pass only.
const SCALAR: &str = "\0scalar";
/// The variable whose items are their own keys, at the price of a string's length.
const TEXT: &str = "\0text";

/// Filters and methods that look at no more than a list's ends or a map's slot.
const CHEAP_FILTERS: &[&str] = &["count", "d", "default", "first", "last", "length"];
const CHEAP_TESTS: &[&str] = &[
    "boolean",
    "callable",
    "defined",
    "false",
    "float",
    "integer",
    "iterable",
    "mapping",
    "none",
    "number",
    "sequence",
    "string",
    "true",
    "undefined",
];
const CHEAP_METHODS: &[&str] = &["get", "items", "keys", "values"];

/// How an operand is used; see the module's head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Move,
    Text,
    List,
    Whole,
    /// As a factor: lists times numbers nest lazily without end, and no template needs them.
    Scalar,
}

/// Rebuilds a template's tree with its charges.
///
/// # Errors
/// An expression nests deeper than [`limits::EXPRESSION_DEPTH_MAX`].
pub(crate) fn metered<'a>(template: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
    let mut macros = Vec::new();
    find_macros(std::slice::from_ref(template), &mut macros);
    let rebuild = Rebuild { macros, depth: Cell::new(0), too_deep: Cell::new(false) };
    let tree = rebuild.stmt(template);
    if rebuild.too_deep.get() {
        return Err(Error::new(ErrorKind::SyntaxError, "an expression nests too deep"));
    }
    Ok(tree)
}

fn find_macros<'a>(body: &[Stmt<'a>], names: &mut Vec<&'a str>) {
    for stmt in body {
        match stmt {
            Stmt::Template(s) => find_macros(&s.children, names),
            Stmt::ForLoop(s) => [&s.body, &s.else_body].iter().for_each(|b| find_macros(b, names)),
            Stmt::IfCond(s) => [&s.true_body, &s.false_body].iter().for_each(|b| find_macros(b, names)),
            Stmt::WithBlock(s) => find_macros(&s.body, names),
            Stmt::SetBlock(s) => find_macros(&s.body, names),
            Stmt::AutoEscape(s) => find_macros(&s.body, names),
            Stmt::FilterBlock(s) => find_macros(&s.body, names),
            Stmt::Macro(s) => {
                names.push(s.name);
                find_macros(&s.body, names);
            }
            _ => {}
        }
    }
}

struct Rebuild<'a> {
    /// Macros take their arguments as they are; functions look at them.
    macros: Vec<&'a str>,
    /// How deep the expression at hand lies in others.
    depth: Cell<usize>,
    too_deep: Cell<bool>,
}

impl<'a> Rebuild<'a> {
    fn body(&self, body: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
        body.iter().map(|s| self.stmt(s)).collect()
    }

    fn stmt(&self, stmt: &Stmt<'a>) -> Stmt<'a> {
        match stmt {
            Stmt::Template(s) => Stmt::Template(Spanned::new(Template { children: self.body(&s.children) }, s.span())),
            Stmt::EmitExpr(s) => {
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr: self.expr(&s.expr, Use::Whole) }, s.span()))
            }
            Stmt::EmitRaw(s) => Stmt::EmitRaw(Spanned::new(EmitRaw { raw: s.raw }, s.span())),
            Stmt::ForLoop(s) => {
                let node = ForLoop {
                    target: self.target(&s.target),
                    iter: self.expr(&s.iter, Use::List),
                    filter_expr: s.filter_expr.as_ref().map(|e| self.expr(e, Use::Move)),
                    recursive: s.recursive,
                    body: self.body(&s.body),
                    else_body: self.body(&s.else_body),
                };
                Stmt::ForLoop(Spanned::new(node, s.span()))
            }
            Stmt::IfCond(s) => {
                let node = IfCond {
                    expr: self.expr(&s.expr, Use::Move),
                    true_body: self.body(&s.true_body),
                    false_body: self.body(&s.false_body),
                };
                Stmt::IfCond(Spanned::new(node, s.span()))
            }
            Stmt::Set(s) => {
                let node = Set { target: self.target(&s.target), expr: self.expr(&s.expr, Use::Move) };
                Stmt::Set(Spanned::new(node, s.span()))
            }
            Stmt::SetBlock(s) => {
                let filter = s.filter.as_ref().map(|f| self.expr(f, Use::Move));
                let node = SetBlock { target: self.target(&s.target), filter, body: self.body(&s.body) };
                Stmt::SetBlock(Spanned::new(node, s.span()))
            }
            Stmt::Macro(s) => Stmt::Macro(Spanned::new(self.macro_of(s), s.span())),
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, s.span())),
            Stmt::Do(s) => Stmt::Do(Spanned::new(Do { call: self.call(&s.call) }, s.span())),
            Stmt::WithBlock(_) | Stmt::AutoEscape(_) | Stmt::FilterBlock(_) | Stmt::CallBlock(_) => self.block(stmt),
        }
    }

    /// The blocks that chat templates hardly use.
    fn block(&self, stmt: &Stmt<'a>) -> Stmt<'a> {
        match stmt {
            Stmt::WithBlock(s) => {
                let pairs = s.assignments.iter();
                let assignments = pairs.map(|(to, from)| (self.target(to), self.expr(from, Use::Move))).collect();
                Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: self.body(&s.body) }, s.span()))
            }
            Stmt::AutoEscape(s) => {
                let node = AutoEscape { enabled: self.expr(&s.enabled, Use::Move), body: self.body(&s.body) };
                Stmt::AutoEscape(Spanned::new(node, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let filter = self.expr(&s.filter, Use::Move);
                let node = FilterBlock { filter, filter_span: s.filter_span, body: self.body(&s.body) };
                Stmt::FilterBlock(Spanned::new(node, s.span()))
            }
            Stmt::CallBlock(s) => {
                let node = CallBlock {
                    call: self.call(&s.call),
                    call_expr_span: s.call_expr_span,
                    macro_decl: Spanned::new(self.macro_of(&s.macro_decl), s.macro_decl.span()),
                };
                Stmt::CallBlock(Spanned::new(node, s.span()))
            }
            other => self.stmt(other),
        }
    }

    fn macro_of(&self, m: &Macro<'a>) -> Macro<'a> {
        Macro {
            name: m.name,
            args: m.args.iter().map(|e| self.target(e)).collect(),
            defaults: m.defaults.iter().map(|e| self.expr(e, Use::Move)).collect(),
            body: self.body(&m.body),
        }
    }

    /// What is assigned to stays as it is: names, attributes of namespaces, lists of names.
    fn target(&self, expr: &Expr<'a>) -> Expr<'a> {
        match expr {
            Expr::Var(e) => Expr::Var(Spanned::new(Var { id: e.id }, e.span())),
            Expr::GetAttr(e) => {
                Expr::GetAttr(Spanned::new(GetAttr { expr: self.target(&e.expr), name: e.name }, e.span()))
            }
            Expr::List(e) => {
                let items = e.items.iter().map(|e| self.target(e)).collect();
                Expr::List(Spanned::new(List { items }, e.span()))
            }
            Expr::Tuple(e) => {
                let items = e.items.iter().map(|e| self.target(e)).collect();
                Expr::Tuple(Spanned::new(Tuple { items }, e.span()))
            }
            other => self.expr(other, Use::Move),
        }
    }

    /// The expression rebuilt, with the charge that its use asks for.
    fn expr(&self, expr: &Expr<'a>, how: Use) -> Expr<'a> {
        let free = matches!(expr, Expr::Const(_) | Expr::Compare(_) | Expr::Test(_) | Expr::UnaryOp(_))
            || matches!(expr, Expr::BinOp(e) if !makes_lists(e.op));
        if self.depth.get() == limits::EXPRESSION_DEPTH_MAX {
            self.too_deep.set(true);
            return Expr::Const(Spanned::new(Const { value: Value::from(()) }, expr.span()));
        }
        self.depth.set(self.depth.get() + 1);
        let rebuilt = self.bare(expr);
        self.depth.set(self.depth.get() - 1);
        if free { rebuilt } else { charge(rebuilt, how, expr.span()) }
    }

    fn boxed(&self, expr: Option<&Expr<'a>>, how: Use) -> Option<Expr<'a>> {
        expr.map(|e| self.expr(e, how))
    }

    fn all(&self, exprs: &[Expr<'a>], how: Use) -> Vec<Expr<'a>> {
        exprs.iter().map(|e| self.expr(e, how)).collect()
    }

    fn bare(&self, expr: &Expr<'a>) -> Expr<'a> {
        let span = expr.span();
        match expr {
            Expr::Var(e) => Expr::Var(Spanned::new(Var { id: e.id }, span)),
            Expr::Const(e) => Expr::Const(Spanned::new(Const { value: e.value.clone() }, span)),
            Expr::Slice(e) => {
                let bound = |bound: &Option<Expr<'a>>| self.boxed(bound.as_ref(), Use::Move);
                let node = Slice {
                    expr: self.expr(&e.expr, Use::List),
                    start: bound(&e.start),
                    stop: bound(&e.stop),
                    step: bound(&e.step),
                };
                Expr::Slice(Spanned::new(node, span))
            }
            Expr::UnaryOp(e) => {
                let op = if matches!(e.op, UnaryOpKind::Not) { UnaryOpKind::Not } else { UnaryOpKind::Neg };
                Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: self.expr(&e.expr, Use::Move) }, span))
            }
            Expr::BinOp(e) => Expr::BinOp(Spanned::new(self.operator(e), span)),
            Expr::Compare(e) => {
                let op = |op: &CompareOp<'a>| CompareOp { op: op.op, expr: self.expr(&op.expr, Use::Whole) };
                let node = Compare { expr: self.expr(&e.expr, Use::Whole), ops: e.ops.iter().map(op).collect() };
                Expr::Compare(Spanned::new(node, span))
            }
            Expr::IfExpr(e) => {
                let node = IfExpr {
                    test_expr: self.expr(&e.test_expr, Use::Move),
                    true_expr: self.expr(&e.true_expr, Use::Move),
                    false_expr: self.boxed(e.false_expr.as_ref(), Use::Move),
                };
                Expr::IfExpr(Spanned::new(node, span))
            }
            Expr::GetAttr(e) => {
                Expr::GetAttr(Spanned::new(GetAttr { expr: self.expr(&e.expr, Use::Move), name: e.name }, span))
            }
            Expr::GetItem(e) => {
                let node = GetItem {
                    expr: self.expr(&e.expr, Use::Text),
                    subscript_expr: self.expr(&e.subscript_expr, Use::Whole),
                };
                Expr::GetItem(Spanned::new(node, span))
            }
            Expr::List(e) => Expr::List(Spanned::new(List { items: self.all(&e.items, Use::Whole) }, span)),
            Expr::Tuple(e) => Expr::Tuple(Spanned::new(Tuple { items: self.all(&e.items, Use::Whole) }, span)),
            Expr::Map(e) => {
                let node = Map { keys: self.all(&e.keys, Use::Whole), values: self.all(&e.values, Use::Whole) };
                Expr::Map(Spanned::new(node, span))
            }
            Expr::Filter(_) | Expr::Test(_) | Expr::Call(_) => self.applied(expr),
        }
    }

    /// Filters, tests and calls.
    fn applied(&self, expr: &Expr<'a>) -> Expr<'a> {
        let span = expr.span();
        match expr {
            Expr::Filter(e) => {
                let how = if CHEAP_FILTERS.contains(&e.name) { Use::Text } else { Use::Whole };
                let node = Filter {
                    name: e.name,
                    expr: self.boxed(e.expr.as_ref(), how),
                    args: self.args(&e.args, Use::Whole),
                };
                Expr::Filter(Spanned::new(node, span))
            }
            Expr::Test(e) => {
                let how = if CHEAP_TESTS.contains(&e.name) { Use::Move } else { Use::Whole };
                let node = Test { name: e.name, expr: self.expr(&e.expr, how), args: self.args(&e.args, Use::Whole) };
                Expr::Test(Spanned::new(node, span))
            }
            Expr::Call(e) => Expr::Call(self.call(e)),
            other => self.bare(other),
        }
    }

    fn call(&self, call: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
        let (callee, args) = match &call.expr {
            Expr::GetAttr(method) => {
                let how = if CHEAP_METHODS.contains(&method.name) { Use::Move } else { Use::Whole };
                let node = GetAttr { expr: self.expr(&method.expr, how), name: method.name };
                (Expr::GetAttr(Spanned::new(node, method.span())), Use::Whole)
            }
            Expr::Var(name) if self.macros.contains(&name.id) => (self.bare(&call.expr), Use::Move),
            other => (self.expr(other, Use::Move), Use::Whole),
        };
        Spanned::new(Call { expr: callee, args: self.args(&call.args, args) }, call.span())
    }

    fn args(&self, args: &[CallArg<'a>], how: Use) -> Vec<CallArg<'a>> {
        let arg = |arg: &CallArg<'a>| match arg {
            CallArg::Pos(e) => CallArg::Pos(self.expr(e, how)),
            CallArg::Kwarg(name, e) => CallArg::Kwarg(name, self.expr(e, how)),
            CallArg::PosSplat(e) => CallArg::PosSplat(self.expr(e, how)),
            CallArg::KwargSplat(e) => CallArg::KwargSplat(self.expr(e, how)),
        };
        args.iter().map(arg).collect()
    }

    fn operator(&self, e: &BinOp<'a>) -> BinOp<'a> {
        use BinOpKind::{Div, FloorDiv, Mul, Pow, Rem, ScAnd, ScOr, Sub};
        let how = match e.op {
            ScAnd | ScOr | Sub | Div | FloorDiv | Rem | Pow => Use::Move,
            Mul => Use::Scalar,
            _ => Use::Whole,
        };
        BinOp { op: e.op, left: self.expr(&e.left, how), right: self.expr(&e.right, how) }
    }
}

/// Whether an operator's result can be a list, or one of its operands.
fn makes_lists(op: BinOpKind) -> bool {
    matches!(op, BinOpKind::Add | BinOpKind::ScAnd | BinOpKind::ScOr)
}

/// Puts the charge around an operand.
fn charge<'a>(expr: Expr<'a>, how: Use, span: Span) -> Expr<'a> {
    match how {
        Use::Move => expr,
        Use::List => filter(LIST, expr, span),
        Use::Whole => filter(WHOLE, expr, span),
        Use::Scalar => filter(SCALAR, expr, span),
        Use::Text => {
            let meter = Expr::Var(Spanned::new(Var { id: TEXT }, span));
            Expr::GetItem(Spanned::new(GetItem { expr: meter, subscript_expr: expr }, span))
        }
    }
}

fn filter<'a>(name: &'static str, expr: Expr<'a>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(Filter { name, expr: Some(expr), args: Vec::new() }, span))
}

/// Gives the charges their meaning in an environment whose fuel is `fuel`.
pub(crate) fn install(env: &mut Environment<'_>, fuel: u64) {
    env.set_fuel(Some(fuel));
    env.add_filter(LIST, list);
    env.add_filter(WHOLE, whole);
    env.add_filter(SCALAR, scalar);
    env.add_global(TEXT, Value::from_object(Text(AtomicU64::new(fuel))));
}

/// A filter, so that minijinja itself charges for a string and for a list's slots.
fn whole(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if is_container(&value) {
        visit(state, &value, 0)?;
    }
    list(state, value)
}

/// The value, or a list of its items if they are made only when asked for.
fn list(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        state.consume_fuel(1)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

fn is_container(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable)
}

/// Pays for everything inside `value`, as often as it occurs.
fn visit(state: &State<'_, '_>, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > limits::VALUE_DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "lists and maps nest too deep"));
    }
    let bytes = value.as_str().map_or(0, str::len) as u64;
    state.consume_fuel(1 + bytes / 64)?;
    if !is_container(value) {
        return Ok(());
    }
    let map = value.kind() == ValueKind::Map;
    for item in value.try_iter()?.checked() {
        let item = item?;
        visit(state, &item, depth + 1)?;
        if map {
            visit(state, &value.get_item(&item)?, depth + 1)?;
        }
    }
    Ok(())
}

fn scalar(value: Value) -> Result<Value, Error> {
    if is_container(&value) {
        return Err(Error::new(ErrorKind::InvalidOperation, "lists cannot be multiplied in a chat template"));
    }
    Ok(value)
}

/// Looking a value up in this object gives the value itself, at the price of a string's length. A lookup, other than a
/// filter, does not charge for the slots of a list.
#[derive(Debug)]
struct Text(AtomicU64);

impl Object for Text {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let cost = key.as_str().map_or(0, str::len) as u64 / 64;
        let paid = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(cost));
        Some(if paid.is_ok() { key.clone() } else { Value::from(Error::from(ErrorKind::OutOfFuel)) })
    }
}
