//! Transformer encoders as transformers builds them: `BertModel` (base and large, uncased, with pooler),
//! `DistilBertModel` and `RobertaModel` (with pooler).
//!
//! Inference gives the last hidden states, and the pooled output where there is a pooler. Training adds a head of two
//! classes, `classifier`, on the pooled output (DistilBERT: on the first token's hidden state), which the counted
//! parameters don't include and published base weights don't need. Every token is attended to: no padding, no mask.

use migperf_core::workload::{Model, Workload};
use tch::{Kind, TchError, Tensor};

use super::layers::{Embedding, LayerNorm, Linear, attention, cross_entropy};
use super::parameters::{Init, Parameters, Scope};
use super::{Batch, Network};

/// Classes of the head that training adds.
pub const CLASSES: i64 = 2;

/// What tells the family's members apart.
#[derive(Debug, Clone, Copy)]
struct Config {
    vocabulary: i64,
    positions: i64,
    /// Positions start here: RoBERTa's first two rows belong to padding.
    first_position: i64,
    /// Kinds of tokens; 0 where the model doesn't tell kinds apart.
    token_types: i64,
    width: i64,
    layers: i64,
    heads: i64,
    inner: i64,
    epsilon: f64,
    pooler: bool,
    names: &'static LayerNames,
}

/// The parts of a layer under the name of its model's library class.
#[derive(Debug)]
struct LayerNames {
    layers: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    output: &'static str,
    attention_norm: &'static str,
    up: &'static str,
    down: &'static str,
    norm: &'static str,
}

const BERT_NAMES: LayerNames = LayerNames {
    layers: "encoder.layer",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
};

const DISTILBERT_NAMES: LayerNames = LayerNames {
    layers: "transformer.layer",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
};

impl Config {
    fn of(model: Model) -> Self {
        let base = Self {
            vocabulary: 30_522,
            positions: 512,
            first_position: 0,
            token_types: 2,
            width: 768,
            layers: 12,
            heads: 12,
            inner: 3072,
            epsilon: 1e-12,
            pooler: true,
            names: &BERT_NAMES,
        };
        match model {
            Model::BertLarge => Self { width: 1024, layers: 24, heads: 16, inner: 4096, ..base },
            Model::DistilBert => Self { token_types: 0, layers: 6, pooler: false, names: &DISTILBERT_NAMES, ..base },
            Model::RobertaBase => {
                Self { vocabulary: 50_265, positions: 514, first_position: 2, token_types: 1, epsilon: 1e-5, ..base }
            }
            _ => base,
        }
    }
}

/// The standard deviation that every weight of the family starts with.
const INIT: Init = Init::Normal { deviation: 0.02 };

fn linear(scope: &Scope<'_>, inputs: i64, outputs: i64) -> Result<Linear, TchError> {
    Linear::with_init(scope, inputs, outputs, INIT, Some(Init::Zeros))
}

/// One encoder layer, normalising after each residual sum.
#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    norm: LayerNorm,
    heads: i64,
}

impl Layer {
    fn new(scope: &Scope<'_>, config: &Config) -> Result<Self, TchError> {
        let Config { width, inner, epsilon, names, .. } = *config;
        Ok(Self {
            query: linear(&scope.at(names.query), width, width)?,
            key: linear(&scope.at(names.key), width, width)?,
            value: linear(&scope.at(names.value), width, width)?,
            output: linear(&scope.at(names.output), width, width)?,
            attention_norm: LayerNorm::new(&scope.at(names.attention_norm), width, epsilon)?,
            up: linear(&scope.at(names.up), width, inner)?,
            down: linear(&scope.at(names.down), inner, width)?,
            norm: LayerNorm::new(&scope.at(names.norm), width, epsilon)?,
            heads: config.heads,
        })
    }

    /// `[batch, tokens, width]` → the same.
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let attended = attention(&self.query.forward(x)?, &self.key.forward(x)?, &self.value.forward(x)?, self.heads)?;
        let x = self.attention_norm.forward(&self.output.forward(&attended)?.f_add(x)?)?;
        let inner = self.up.forward(&x)?.f_gelu("none")?;
        self.norm.forward(&self.down.forward(&inner)?.f_add(&x)?)
    }
}

/// A transformer encoder.
#[derive(Debug)]
pub struct Bert {
    config: Config,
    words: Embedding,
    places: Embedding,
    token_types: Option<Embedding>,
    norm: LayerNorm,
    layers: Vec<Layer>,
    pooler: Option<Linear>,
    classifier: Option<Linear>,
    /// `[1, positions]`: the row of each place in a sequence.
    positions: Tensor,
}

impl Bert {
    /// Registers the parameters of one of the encoders; with a head where they will be trained.
    ///
    /// # Errors
    /// When they don't fit.
    pub fn new(root: &Scope<'_>, model: Model) -> Result<Self, TchError> {
        let config = Config::of(model);
        let width = config.width;
        let embeddings = root.at("embeddings");
        let positions =
            Tensor::f_arange_start(config.first_position, config.positions, (Kind::Int64, root.parameters().device()))?;
        Ok(Self {
            config,
            words: Embedding::new(&embeddings.at("word_embeddings"), config.vocabulary, width, INIT)?,
            places: Embedding::new(&embeddings.at("position_embeddings"), config.positions, width, INIT)?,
            token_types: (config.token_types > 0)
                .then(|| Embedding::new(&embeddings.at("token_type_embeddings"), config.token_types, width, INIT))
                .transpose()?,
            norm: LayerNorm::new(&embeddings.at("LayerNorm"), width, config.epsilon)?,
            layers: (0..config.layers)
                .map(|layer| Layer::new(&root.at(config.names.layers).at(layer), &config))
                .collect::<Result<_, _>>()?,
            pooler: config.pooler.then(|| linear(&root.at("pooler.dense"), width, width)).transpose()?,
            classifier: root
                .parameters()
                .trainable()
                .then(|| linear(&root.head("classifier"), width, CLASSES))
                .transpose()?,
            positions: positions.f_unsqueeze(0)?,
        })
    }

    /// `[batch, tokens]` ids, and as many token types where the model has them → `[batch, tokens, width]`.
    fn hidden(&self, inputs: &[Tensor]) -> Result<Tensor, TchError> {
        let (_, length) = inputs[0].size2()?;
        let mut x = self.words.forward(&inputs[0])?;
        if let Some(token_types) = &self.token_types {
            x = x.f_add(&token_types.forward(&inputs[1])?)?;
        }
        let places = self.places.forward(&self.positions.f_narrow(1, 0, length)?)?;
        x = self.norm.forward(&x.f_add(&places)?)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(x)
    }

    /// `[batch, tokens, width]` → `[batch, width]`; the first token's state where there is no pooler.
    fn pooled(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        let first = hidden.f_select(1, 0)?;
        match &self.pooler {
            Some(pooler) => pooler.forward(&first)?.f_tanh(),
            None => Ok(first),
        }
    }
}

impl Network for Bert {
    fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
        let hidden = self.hidden(inputs)?;
        if self.pooler.is_none() {
            return Ok(vec![hidden]);
        }
        let pooled = self.pooled(&hidden)?;
        Ok(vec![hidden, pooled])
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, TchError> {
        let pooled = self.pooled(&self.hidden(&batch.inputs)?)?;
        match &self.classifier {
            Some(classifier) => cross_entropy(&classifier.forward(&pooled)?, &batch.target),
            None => Err(TchError::Shape("a model registered for inference has no head to train".to_owned())),
        }
    }

    fn synthetic_batch(&self, parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError> {
        let batch = i64::from(workload.batch_size);
        let length = i64::from(workload.sequence_length.unwrap_or(Workload::DEFAULT_SEQUENCE));
        let options = (Kind::Int64, parameters.device());
        // The first ids are padding and marks in every vocabulary of the family.
        let mut inputs = vec![Tensor::f_randint_low(4, self.config.vocabulary, [batch, length], options)?];
        if self.token_types.is_some() {
            inputs.push(Tensor::f_zeros([batch, length], options)?);
        }
        Ok(Batch { inputs, target: Tensor::f_randint(CLASSES, [batch], options)? })
    }
}
