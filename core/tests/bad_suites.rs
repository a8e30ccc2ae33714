//! Suites that can't be: each with the whole of what is said about it.

use migperf_core::suite::Suite;

const TOP: &str = "version = 1\nname = \"x\"";
const WORK: &str = r#"workload = { model = "resnet18", task = "infer", batch-size = 32 }"#;

/// A suite, in which `$TOP`, `$WORK` and `$TRIAL` stand for harmless lines, and every message, one a line.
const TABLE: &[(&str, &str)] = &[
    (
        r#""#,
        r#"1:1: a suite needs `version`, such as version = 1
1:1: a suite needs `name`, such as name = "my-suite"
1:1: the suite has no trials; add a [[trial]] with `sharing` and `workload`"#,
    ),
    (
        r#"$TOP
[[trial]"#,
        r#"3:9: this is not TOML: unclosed array table, expected `]`"#,
    ),
    (
        r#"version = 1
name = x
$TRIAL"#,
        r#"2:8: this is not TOML: string values must be quoted, expected literal string"#,
    ),
    (
        r#"$TOP
name = "y"
$TRIAL"#,
        r#"3:1: this is not TOML: duplicate key"#,
    ),
    (
        r#"name = "x"
$TRIAL"#,
        r#"1:1: a suite needs `version`, such as version = 1"#,
    ),
    (
        r#"version = 2
name = "x"
$TRIAL"#,
        r#"1:11: this is a suite of version 2; this program reads version 1"#,
    ),
    (
        r#"version = "1"
name = "x"
$TRIAL"#,
        r#"1:11: `version` must be the number 1, not a string"#,
    ),
    (
        r#"version = 1
$TRIAL"#,
        r#"1:1: a suite needs `name`, such as name = "my-suite""#,
    ),
    (
        r#"version = 1
name = "my suite"
$TRIAL"#,
        r#"2:8: `name` must be 1 to 64 letters, digits, `-`, `_` or `.`, and start with a letter or digit"#,
    ),
    (
        r#"version = 1
name = ""
$TRIAL"#,
        r#"2:8: `name` must be 1 to 64 letters, digits, `-`, `_` or `.`, and start with a letter or digit"#,
    ),
    (
        r#"$TOP
description = "a\u001b[31m"
$TRIAL"#,
        r#"3:15: `description` must be at most 2000 characters, without control characters other than line breaks"#,
    ),
    (
        r#"$TOP
title = "x"
$TRIAL"#,
        r#"3:1: a suite has no key `title`; its keys are version, name, description, defaults, objective, trial"#,
    ),
    (
        r#"$TOP
repeats = 3
$TRIAL"#,
        r#"3:1: a suite has no key `repeats`; it belongs in [defaults]"#,
    ),
    (r#"$TOP"#, r#"1:1: the suite has no trials; add a [[trial]] with `sharing` and `workload`"#),
    (
        r#"$TOP
trial = []"#,
        r#"3:9: the suite has no trials; add a [[trial]] with `sharing` and `workload`"#,
    ),
    (
        r#"$TOP
[trial]
sharing = "exclusive"
$WORK"#,
        r#"3:1: `trial` must be a list of sections, each headed [[trial]] in double brackets, not a table"#,
    ),
    (
        r#"$TOP
[[trials]]
sharing = "exclusive"
$WORK"#,
        r#"3:3: a suite has no key `trials`; did you mean `trial`?"#,
    ),
    (
        r#"$TOP
[default]
window = "45s"
$TRIAL"#,
        r#"3:2: a suite has no key `default`; did you mean `defaults`?"#,
    ),
    (
        r#"$TOP
[defaults]
window = 45
$TRIAL"#,
        r#"4:10: `window` must be a span of time with its unit, such as "45s", not a whole number"#,
    ),
    (
        r#"$TOP
[defaults]
window = "45"
$TRIAL"#,
        r#"4:10: `window`: `45` is not a span of time; write a number and a unit (ms, s, m, h), such as "45s" or "1m30s""#,
    ),
    (
        r#"$TOP
[defaults]
window = "45 sec"
$TRIAL"#,
        r#"4:10: `window`: `45 sec` is not a span of time; write a number and a unit (ms, s, m, h), such as "45s" or "1m30s""#,
    ),
    (
        r#"$TOP
[defaults]
window = "50ms"
$TRIAL"#,
        r#"4:10: `window` is 50ms; it must be 100ms to 24h"#,
    ),
    (
        r#"$TOP
[defaults]
window = "25h"
$TRIAL"#,
        r#"4:10: `window` is 25h; it must be 100ms to 24h"#,
    ),
    (
        r#"$TOP
[defaults]
window = "60s"
longest-window = "30s"
$TRIAL"#,
        r#"5:18: `longest-window` is 30s, shorter than the `window` of 1m; make it at least as long"#,
    ),
    (
        r#"$TOP
[defaults]
settle = "100ms"
$TRIAL"#,
        r#"4:10: `settle` is 100ms; it must be 500ms to 1h"#,
    ),
    (
        r#"$TOP
[defaults]
windw = "45s"
$TRIAL"#,
        r#"4:1: [defaults] has no key `windw`; did you mean `window`?"#,
    ),
    (
        r#"$TOP
[defaults]
repeats = 0
$TRIAL"#,
        r#"4:11: `repeats` is 0; it must be 1 to 1000"#,
    ),
    (
        r#"$TOP
[defaults]
repeats = 1.5
$TRIAL"#,
        r#"4:11: `repeats` must be a whole number, not a number with a fraction"#,
    ),
    (
        r#"$TOP
[defaults]
seed = -1
$TRIAL"#,
        r#"4:8: `seed` is -1; it must be 0 to 9223372036854775807"#,
    ),
    (
        r#"$TOP
[defaults]
precision = ["fp32", "bf16"]
$TRIAL"#,
        r#"4:13: `precision` takes one value here; a list of values belongs in a workload"#,
    ),
    (
        r#"$TOP
[defaults]
precision = "float32"
$TRIAL"#,
        r#"4:13: `precision`: `float32` is not known; one of fp32, tf32, bf16, fp16"#,
    ),
    (
        r#"$TOP
[defaults]
batch-size = 32
$TRIAL"#,
        r#"4:1: [defaults] has no key `batch-size`; it belongs in a workload: workload = { model = "resnet18", ... }"#,
    ),
    (
        r#"$TOP
[defaults]
sequence-length = 1024
$TRIAL"#,
        r#"4:19: `sequence-length` is 1024; it must be 1 to 512"#,
    ),
    (
        r#"$TOP
[defaults]
warmup-batches = 0
$TRIAL"#,
        r#"4:18: `warmup-batches` is 0; it must be 1 to 100000"#,
    ),
    (
        r#"$TOP
defaults = "fp32"
$TRIAL"#,
        r#"3:12: [defaults] must be a table, not a string"#,
    ),
    (
        r#"$TOP
$TRIAL
window = "1s"
longest-window = "500ms""#,
        r#"7:18: `longest-window` is 500ms, shorter than the `window` of 1s; make it at least as long"#,
    ),
    (
        r#"$TOP
$TRIAL
repeats = 3"#,
        r#"6:1: a [[trial]] has no key `repeats`; it belongs in [defaults]"#,
    ),
    (
        r#"$TOP
[[trial]]
$WORK"#,
        r#"3:1: a [[trial]] needs `sharing`, such as sharing = "exclusive""#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive""#,
        r#"3:1: a [[trial]] needs `workload`, such as workload = { model = "resnet18", task = "infer", batch-size = 32 }"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusiv"
$WORK"#,
        r#"4:11: `sharing`: `exclusiv` is not known; one of exclusive, time-slice, mps, mig, cpu; did you mean `exclusive`?"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "timeslice"
$WORK"#,
        r#"4:11: `sharing`: `timeslice` is not known; one of exclusive, time-slice, mps, mig, cpu; did you mean `time-slice`?"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps@14"
$WORK"#,
        r#"4:11: a cap is an option of `mps`; write { mode = "mps", active-thread-percentage = 14 }"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mig"
$WORK"#,
        r#"4:11: `mig` needs a layout; write { mode = "mig", layout = "7x1g" }"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = []
$WORK"#,
        r#"4:11: `sharing` is an empty list; give at least one value"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = 1
$WORK"#,
        r#"4:11: `sharing` must be a name such as "mps", a table with `mode`, or a list of these, not a whole number"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { active-thread-percentage = 14 }
$WORK"#,
        r#"4:11: a sharing needs `mode`, such as mode = "mps""#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mps", active-thread-percentage = 0 }
$WORK"#,
        r#"4:54: `active-thread-percentage` is 0; it must be 1 to 100"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "time-slice", active-thread-percentage = 14 }
$WORK"#,
        r#"4:61: `active-thread-percentage` belongs to mode `mps`, this sharing is `time-slice`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mps", percentage = 14 }
$WORK"#,
        r#"4:27: a sharing has no key `percentage`; its keys are mode, active-thread-percentage, layout, clients"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mps", layout = "7x1g" }
$WORK"#,
        r#"4:36: `layout` belongs to mode `mig`, this sharing is `mps`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig" }
$WORK"#,
        r#"4:11: a sharing needs `layout`, such as layout = "7x1g""#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "7x" }
$WORK"#,
        r#"4:36: `layout`: `7x`, character 1: `7x` is no MIG profile; write it as `1g`, `1g.18gb`, `2g.20gb+me` or `1c.3g.20gb`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "99x1g" }
$WORK"#,
        r#"4:36: `layout`: `99x1g`, character 1: more than 48 instances; no GPU has so many"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "4c.3g" }
$WORK"#,
        r#"4:36: `layout`: `4c.3g`, character 1: `4c.3g` asks for 4 compute slices of an instance that has 3"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "3g+2g" }
workers = 3
$WORK"#,
        r#"4:11: 3 workers can't each have an instance of `3g+2g`, which has 2; add instances or take fewer workers"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "off" }
$WORK"#,
        r#"4:36: `off` has no instance that a worker could have; write `7x1g`, or a mode such as `exclusive`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "3g()" }
$WORK"#,
        r#"4:36: a `3g` without compute instances can't run a worker; leave the empty parentheses out"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "1g+3g(2c+2c)" }
$WORK"#,
        r#"4:36: `layout`: `1g+3g(2c+2c)`, character 4: compute instances of 4 slices together do not fit into the 3 of `3g`; leave some out"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mps", clients = 2 }
$WORK"#,
        r#"4:37: `clients` belongs to mode `mig`, this sharing is `mps`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "2x3g", active-thread-percentage = 50 }
$WORK"#,
        r#"4:71: `active-thread-percentage` caps MPS clients; add `clients = N` for MPS on each instance, or leave it out"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mig", layout = "2x3g", clients = 2 }
workers = 5
$WORK"#,
        r#"4:11: 5 workers can't each have an instance of `2x3g`, which has 2 for 2 clients each; add instances or take fewer workers"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = ["cpu", "mps"]
$WORK"#,
        r#"4:11: one trial can't be both on the CPU and on a GPU; write `cpu` in a [[trial]] of its own"#,
    ),
    (
        r#"$TOP
[[trial]]
only-on = "gpu"
sharing = "cpu"
$WORK"#,
        r#"5:11: `only-on` is `gpu`, but `cpu` runs only on the CPU"#,
    ),
    (
        r#"$TOP
[[trial]]
only-on = "tpu"
sharing = "cpu"
$WORK"#,
        r#"4:11: `only-on`: `tpu` is not known; one of gpu, cpu"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = ["exclusive", "mps"]
workers = [1, 4]
$WORK"#,
        r#"4:12: exclusive takes exactly one worker, this cohort has 4; use `time-slice`, `mps` or `mig` for several"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = 0
$WORK"#,
        r#"5:11: `workers` is 0; it must be 1 to 48"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = 49
$WORK"#,
        r#"5:11: `workers` is 49; it must be 1 to 48"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = []
$WORK"#,
        r#"5:11: `workers` is an empty list; give at least one value"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
members = [ { count = 40, $WORK }, { count = 9, workload = { model = "resnet18", task = "train", batch-size = 32 } } ]"#,
        r#"5:11: a cohort of 49 workers is over the limit of 48, which MPS sets"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
members = []"#,
        r#"5:11: `members` is an empty list; give at least one value"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
members = { $WORK }"#,
        r#"5:11: `members` must be a list of tables, not a table"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
members = [ { model = "resnet18" } ]"#,
        r#"5:13: a member needs `workload`, such as workload = { model = "resnet18", task = "infer", batch-size = 32 }
5:15: a member has no key `model`; it belongs in a workload: workload = { model = "resnet18", ... }"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = 2
$WORK
members = [ { $WORK } ]"#,
        r#"7:11: a [[trial]] has both `members` and `workload`; keep one: `workload` for workers that are alike, `members` for different ones
7:11: a [[trial]] has both `members` and `workers`; keep one: each of `members` has a `count`"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
model = "resnet18"
$WORK"#,
        r#"5:1: a [[trial]] has no key `model`; it belongs in a workload: workload = { model = "resnet18", ... }"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = "resnet18""#,
        r#"5:12: a workload must be a table, not a string"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet-18", task = "infer", batch-size = 32 }"#,
        r#"5:22: `model`: `resnet-18` is not known; one of resnet18, resnet34, resnet50, resnet101, resnet152, bert-base, bert-large, distilbert, roberta-base, vit-b-16, vit-l-16, sd15-unet, ddpm-unet, empty; did you mean `resnet18`?"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "gpt-2", task = "infer", batch-size = 32 }"#,
        r#"5:22: `model`: `gpt-2` is not known; one of resnet18, resnet34, resnet50, resnet101, resnet152, bert-base, bert-large, distilbert, roberta-base, vit-b-16, vit-l-16, sd15-unet, ddpm-unet, empty"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet18", task = "inference", batch-size = 32 }"#,
        r#"5:41: `task`: `inference` is not known; one of train, infer; did you mean `infer`?"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet18", task = "infer", batch_size = 32 }"#,
        r#"5:50: a workload has no key `batch_size`; did you mean `batch-size`?"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet18", task = "infer", batch-size = 0 }"#,
        r#"5:63: `batch-size` is 0; it must be 1 to 65536"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet18", task = "infer", batch-size = [1, "8"] }"#,
        r#"5:67: `batch-size` must be a whole number, not a string"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "resnet18", task = "infer", batch-size = 32, sequence-length = 128 }"#,
        r#"5:22: `sequence-length` is given, but resnet18 takes no sequences; give it a workload of its own without the key"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "bert-base", task = "infer", batch-size = 32, sequence-length = [128, 1024] }"#,
        r#"5:92: `sequence-length` is 1024; bert-base has positions for 1 to 512"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { model = "bert-base", task = "infer", batch-size = 32, memory-format = "channels-last" }"#,
        r#"5:22: `memory-format` is given, but bert-base has no convolutions; give it a workload of its own without the key"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "exclusive"
workload = { task = "infer" }"#,
        r#"5:12: a workload needs `model`, such as model = "resnet18"
5:12: a workload needs `batch-size`, such as batch-size = 32"#,
    ),
    (
        r#"$TOP
[objective]
metric = "p98"
$TRIAL"#,
        r#"4:10: `metric`: `p98` is not known; one of mean, p50, p90, p95, p99, p99.9, throughput, energy-per-sample; did you mean `p99`?"#,
    ),
    (
        r#"$TOP
[objective]
at-most = "20ms"
$TRIAL"#,
        r#"3:1: [objective] needs `metric`, such as metric = "p99""#,
    ),
    (
        r#"$TOP
[objective]
metric = "p99"
at-most = "20 parsecs"
$TRIAL"#,
        r#"5:11: `at-most`: `20 parsecs` is no positive number with a unit that p99 has; write it as "20ms", "20us", "20s", or 20 for 20ms"#,
    ),
    (
        r#"$TOP
[objective]
metric = "p99"
at-least = "20ms"
$TRIAL"#,
        r#"5:12: `p99` is better when it is lower: write `at-most` instead of `at-least`"#,
    ),
    (
        r#"$TOP
[objective]
metric = "throughput"
at-least = true
$TRIAL"#,
        r#"5:12: `at-least` must be a number with a unit, not true or false"#,
    ),
    (
        r#"$TOP
[objective]
metric = "p99"
of = "resnet"
$TRIAL"#,
        r#"5:6: `of`: `resnet` is not known; one of train, infer, resnet18, resnet34, resnet50, resnet101, resnet152, bert-base, bert-large, distilbert, roberta-base, vit-b-16, vit-l-16, sd15-unet, ddpm-unet, empty; did you mean `resnet50`?"#,
    ),
    (
        r#"$TOP
[objective]
metric = "p99"
of = "train"
$TRIAL"#,
        r#"5:6: `of` names work that no trial of this suite has (train); the objective would judge nothing"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = [1,2,3,4,5,6,7,8,9,10,11,12]
workload = { model = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"], task = ["train", "infer"], batch-size = [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16], precision = ["fp32","tf32","bf16","fp16"], input = ["device","host"] }"#,
        r#"3:1: the suite's trials come to more than 10000; shorten a list or split the suite"#,
    ),
    (
        r#"$TOP
[defaults]
window = 45
repeats = 0
[[trial]]
sharing = "mig"
workers = 0
workload = { model = "resnet19", batch-size = "32" }"#,
        r#"4:10: `window` must be a span of time with its unit, such as "45s", not a whole number
5:11: `repeats` is 0; it must be 1 to 1000
7:11: `mig` needs a layout; write { mode = "mig", layout = "7x1g" }
8:11: `workers` is 0; it must be 1 to 48
9:12: a workload needs `task`, such as task = ["train", "infer"]
9:22: `model`: `resnet19` is not known; one of resnet18, resnet34, resnet50, resnet101, resnet152, bert-base, bert-large, distilbert, roberta-base, vit-b-16, vit-l-16, sd15-unet, ddpm-unet, empty; did you mean `resnet18`?
9:47: `batch-size` must be a whole number, not a string"#,
    ),
    (
        r#"$TOP
key = [1,, 2]
other = tru
$TRIAL"#,
        r#"3:10: this is not TOML: extra comma in array, expected value
4:9: this is not TOML: invalid boolean, expected `true`"#,
    ),
    (
        r#"k0 = 1
k1 = 1
k2 = 1
"a\u001b\nb" = 1
version = 1
name = "x"
$TRIAL"#,
        r#"1:1: a suite has no key `k0`; its keys are version, name, description, defaults, objective, trial
2:1: a suite has no key `k1`; its keys are version, name, description, defaults, objective, trial
3:1: a suite has no key `k2`; its keys are version, name, description, defaults, objective, trial
4:1: a suite has no key `a\u{1b}\nb`; its keys are version, name, description, defaults, objective, trial"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
workers = 2.0
only-on = true
$WORK"#,
        r#"5:11: `workers` must be a whole number, not a number with a fraction
6:11: `only-on` must be a string, not true or false"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = { mode = "mps", active-thread-percentage = [14, 101, 0x10] }
$WORK"#,
        r#"4:59: `active-thread-percentage` is 101; it must be 1 to 100"#,
    ),
    (
        r#"$TOP
[[trial]]
sharing = "mps"
members = [ { count = 0, $WORK }, 3 ]"#,
        r#"5:23: `count` is 0; it must be 1 to 48
5:96: a member must be a table, not a whole number"#,
    ),
    (
        r#"$TOP
[defaults]
ready-limit = "2h"
longest-windw = "1m"
wait = "sleep"
$TRIAL"#,
        r#"4:15: `ready-limit` is 2h; it must be 1s to 1h
5:1: [defaults] has no key `longest-windw`; did you mean `longest-window`?
6:8: `wait`: `sleep` is not known; one of spin, block"#,
    ),
    (
        r#"$TOP
[defaults]
window = "99999999999999999999h"
$TRIAL"#,
        r#"4:10: `window`: `99999999999999999999h` is too long"#,
    ),
    (
        r#"$TOP
# übergröße
[defaults]
name = "ü"  # ö
precision = "ü"
$TRIAL"#,
        r#"5:1: [defaults] has no key `name`; it belongs at the top of the file, before the first section
6:13: `precision`: `ü` is not known; one of fp32, tf32, bf16, fp16"#,
    ),
];

#[test]
fn messages_say_where_what_and_what_to_do() {
    let mut different = Vec::new();
    for (text, expected) in TABLE {
        let trial = format!("[[trial]]\nsharing = \"exclusive\"\n{WORK}");
        let text = text.replace("$TOP", TOP).replace("$TRIAL", &trial).replace("$WORK", WORK);
        let said = match Suite::parse(&text) {
            Ok(_) => "nothing".to_owned(),
            Err(errors) => errors.to_string(),
        };
        if said != *expected {
            different.push(format!("--- suite\n{text}\n--- said\n{said}\n--- expected\n{expected}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    assert!(TABLE.len() >= 40);
}

#[test]
fn the_harmless_lines_are_harmless() {
    assert!(Suite::parse(&format!("{TOP}\n[[trial]]\nsharing = \"exclusive\"\n{WORK}\n")).is_ok());
}

#[test]
fn a_text_that_is_too_long_is_not_read() {
    let text = "#".repeat(migperf_core::suite::LONGEST_SUITE + 1);
    let message = Suite::parse(&text).unwrap_err().to_string();
    assert_eq!(message, "1:1: the suite is 1048577 bytes long; the limit is 1048576");
}

#[test]
fn a_flood_of_errors_is_cut() {
    let text: String = (0..500).map(|index| format!("key{index} = 1\n")).collect();
    assert_eq!(Suite::parse(&text).unwrap_err().as_slice().len(), 100);
    let text = format!("{} = 1", "k".repeat(10_000));
    assert!(Suite::parse(&text).unwrap_err().to_string().len() < 2_000);
}
