//! Words that are one token each in the model's vocabulary: of them prompts are made that have an exact number of tokens,
//! as ids and as text. Which words those are is asked of the server (`/tokenize`, as vLLM and llama-server have it).

use super::http::{Client, Fault};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

/// Common English words: most are one token of most vocabularies.
const WORDS: &str = "the of and to in is that it was for on are as with his they at be this have from or had by not but what \
    all were when we there can an your which their said if do will each about how up out them then she many some so these \
    would other into has more her two like him see time could no make than first been its who now people my made over did \
    down only way find use may water long little very after words called just where most know get through back much before \
    go good new write our used me man too any day same right look think also around another came come work three word must \
    because does part even place well such here take why things help put years different away again off went old number \
    great tell men say small every found still between name should home big give air line set own under read last never us \
    left end along while might next sound below saw something thought both few those always looked show large often \
    together asked house world going want school important until form food keep children feet land side without boy once \
    animals life enough took sometimes four head above kind began almost live page got earth need far hand high year mother \
    light parts country father let night following picture being study second eyes soon times story boys since white days \
    ever paper hard near sentence better best across during today others however sure means knew try told young miles sun \
    ways thing whole hear example heard several change answer room sea against top turned learn point city play toward five \
    using himself usually money seen car morning given";
/// Fewer words of one token than this make prompts that look alike.
const ENOUGH: usize = 16;

/// What prompts are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// Words of one token each, with their ids; `begin`: tokens that the server puts before a text by itself.
    Exact { words: Vec<(&'static str, u32)>, begin: usize },
    /// The model has no vocabulary: ids below this.
    Ids(u32),
    /// Nobody says what a token is: about one a word.
    Words(Vec<&'static str>),
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

/// What the server said of a text.
enum Reply {
    Tokens(Vec<u32>),
    /// It knows the path, and has no vocabulary.
    NoVocabulary,
    /// It does not know the path.
    Unknown,
}

/// Asks for the pool of a model.
pub(super) async fn pool(client: &Client, model: &str) -> Result<Pool, Fault> {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut single = Vec::new();
    let mut open = vec![&words[..]];
    // A list that has as many tokens as words is one of single tokens; any other is halved.
    while let Some(list) = open.pop() {
        let tokens = match tokens(client, model, &text(list), false).await? {
            Reply::Tokens(tokens) => tokens,
            // Every vocabulary has more tokens than that.
            Reply::NoVocabulary => return Ok(Pool::Ids(200)),
            Reply::Unknown => return Ok(Pool::Words(words)),
        };
        if tokens.len() == list.len() {
            single.extend(list.iter().copied().zip(tokens));
        } else if list.len() > 1 {
            let (left, right) = list.split_at(list.len() / 2);
            open.extend([right, left]);
        }
    }
    if single.len() < ENOUGH {
        return Ok(Pool::Words(words));
    }
    let begin = match tokens(client, model, &text(&[single[0].0]), true).await? {
        Reply::Tokens(tokens) => tokens.len().saturating_sub(1),
        _ => 0,
    };
    Ok(Pool::Exact { words: single, begin })
}

/// Words as they stand in a prompt: a space before each.
pub(super) fn text(words: &[&str]) -> String {
    words.iter().flat_map(|word| [" ", word]).collect()
}

async fn tokens(client: &Client, model: &str, text: &str, with_special: bool) -> Result<Reply, Fault> {
    // vLLM's names, and llama-server's.
    let body = json!({
        "model": model, "prompt": text, "add_special_tokens": with_special, "content": text, "add_special": with_special,
    });
    let (status, body) = client.whole_of_root(Method::POST, "/tokenize", body.to_string().into()).await?;
    let reply = serde_json::from_slice::<Tokenized>(&body);
    Ok(match (status, reply) {
        (200, Ok(reply)) => Reply::Tokens(reply.tokens),
        // Of a server that knows the path and the request, only this is amiss.
        (400, _) if String::from_utf8_lossy(&body).contains("vocabulary") => Reply::NoVocabulary,
        _ => Reply::Unknown,
    })
}
