/* SPDX-License-Identifier: Apache-2.0 */
/* wherry window: check and measure CPU windows on GPU memory. This file parses the command line. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"
#include "engine.h"
#include "output.h"
#include "program.h"
#include "window/window.h"

#define SIZE_MOST (UINT64_C(1) << 34)
#define ROUNDS_MOST 100000

static const struct subcommand {
	const char *name;
	int (*run)(struct window_choices *choices);
	uint64_t least; /* smallest --size, in bytes; 0: the subcommand takes none */
} subcommands[] = {
	{ "check", window_check, 0 },       { "bandwidth", window_bandwidth, 64 },
	{ "latency", window_latency, 4 },   { "api", window_api, 65536 },
	{ "pingpong", window_pingpong, 0 },
};

#define SUBCOMMANDS (sizeof(subcommands) / sizeof(subcommands[0]))

/* ---- the command line ------------------------------------------------------------------------ */

static const struct subcommand *subcommand_find(const struct arguments *arguments)
{
	if (check_subcommand(arguments))
		return NULL;
	for (size_t i = 0; i < SUBCOMMANDS; i++)
		if (!strcmp(subcommands[i].name, arguments->operands[0]))
			return &subcommands[i];
	return NULL;
}

static int choices_add_memory(struct window_choices *choices, const char *text)
{
	struct memory *memory = &choices->memories[choices->memory_count];
	const char *rest, *wrong;

	if (choices->memory_count == WINDOW_MEMORIES)
		return usage_error("--memory: at most %d", WINDOW_MEMORIES);
	wrong = memory_parse(text, memory, &rest);
	if (wrong)
		return usage_error("--memory: '%s' %s", text, wrong);
	if (*rest)
		return usage_error(
			"--memory: '%s': ':%s' after the GPU is not allowed; use --size for a size",
			text, rest);
	if (!memory_on_gpu(memory->kind))
		return usage_error("--memory: '%s' is not GPU memory; a window needs GPU memory",
				   text);
	if (memory->kind == WH_MEMORY_MANAGED)
		return usage_error(
			"--memory: '%s': the CPU reaches managed memory without a window", text);
	for (size_t i = 0; i < choices->memory_count; i++)
		if (!strcmp(choices->memories[i].name, memory->name))
			return usage_error("--memory: %s is given twice", memory->name);
	choices->memory_count++;
	return 0;
}

static int choices_parse_memories(struct window_choices *choices)
{
	const char *text;
	int cursor = 0, error = 0;

	while (!error && (text = argument_next(choices->arguments, "memory", &cursor)))
		error = choices_add_memory(choices, text);
	choices->memories_given = choices->memory_count;
	if (!error && !choices->memories_given)
		error = choices_add_memory(choices, "cuda:0");
	if (!error && !choices->memories_given)
		error = choices_add_memory(choices, "vmm:cuda:0");
	return error;
}

static int choices_parse_numbers(struct window_choices *choices)
{
	const char *size = argument(choices->arguments, "size");
	const char *rounds = argument(choices->arguments, "rounds");
	const char *threads = argument(choices->arguments, "threads");
	uint64_t value;

	if (size) {
		if (parse_size(size, "--size", &choices->size))
			return EXIT_USAGE;
	}
	if (rounds) {
		if (parse_count(rounds, "--rounds", 1, ROUNDS_MOST, &value))
			return EXIT_USAGE;
		choices->rounds = (unsigned)value;
	}
	if (threads) {
		if (parse_count(threads, "--threads", 1, WINDOW_THREADS, &value))
			return EXIT_USAGE;
		choices->threads = (unsigned)value;
	}
	return 0;
}

/* Refuse options that the subcommand does not take. */
static int choices_check_options(const struct window_choices *choices,
				 const struct subcommand *subcommand)
{
	const char *name = subcommand->name, *size = argument(choices->arguments, "size");
	bool check = !strcmp(name, "check");
	char least[32];

	if (choices->only && !check)
		return usage_error("--test is for wherry window check");
	if (size && !subcommand->least)
		return usage_error("--size is not for wherry window %s", name);
	if (size && (choices->size < subcommand->least || choices->size > SIZE_MOST)) {
		format_size(least, sizeof(least), subcommand->least);
		return usage_error("--size: %s is not between %s and 16 GiB", size, least);
	}
	if (choices->rounds && check)
		return usage_error("--rounds is not for wherry window check");
	if (argument(choices->arguments, "ways") && strcmp(name, "bandwidth") != 0)
		return usage_error("--ways is for wherry window bandwidth");
	if (choices->threads && strcmp(name, "bandwidth") != 0)
		return usage_error("--threads is for wherry window bandwidth");
	return 0;
}

/* Check the engine's settings by opening an engine: in a child, because this process must not have
 * threads yet. */
static int choices_check_settings(const struct arguments *arguments)
{
	static const struct engine_setup setup = { .listen = "none" };
	struct wh_engine *engine;
	int status = 0, code;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (!child) {
		code = engine_open(arguments, &setup, &engine);
		exit(code ? code : engine_close(engine, 0));
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return fail(ECHILD, "fork: %s", strerror(errno));
	return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAIL;
}

static int choices_parse(struct window_choices *choices, const struct subcommand *subcommand)
{
	int error = choices_parse_memories(choices);

	choices->backend = argument(choices->arguments, "backend");
	choices->only = argument(choices->arguments, "test");
	if (!error)
		error = check_choice(choices->arguments, "backend");
	if (!error)
		error = choices_parse_numbers(choices);
	if (!error)
		error = choices_check_options(choices, subcommand);
	return error ? error : choices_check_settings(choices->arguments);
}

/* ---- running --------------------------------------------------------------------------------- */

static json_t *results_document(const struct window_choices *choices, const char *name,
				const struct bench_gpus *gpus)
{
	json_t *json = output_new();
	char text[64];

	snprintf(text, sizeof(text), "window %s", name);
	json_object_set_new(json, "command", json_string(text));
	json_object_set_new(json, "environment", bench_environment(gpus, NAN, NAN));
	json_object_set_new(json, "backend", output_text(choices->backend));
	json_object_set(json, "results", choices->results);
	json_object_set(json, "skipped", choices->skipped);
	return json;
}

static int window_run(const struct arguments *arguments)
{
	struct window_choices choices = { .arguments = arguments };
	struct output_file file = { .fd = -1 };
	const struct subcommand *subcommand = subcommand_find(arguments);
	struct bench_gpus gpus = { .count = 0 };
	int code, written = 0;

	if (!subcommand)
		return EXIT_USAGE;
	choices.results = json_array();
	choices.skipped = json_array();
	code = choices_parse(&choices, subcommand);
	if (!code)
		code = output_open(&file, argument(arguments, "json"));
	choices.table = file.table;
	/* It forks a child, so it must come before this process starts CUDA. */
	if (!code && file.path)
		bench_gpus_look(bench_setting(arguments, "cuda"), &gpus);
	if (!code)
		code = subcommand->run(&choices);
	/* Written also if tests have failed: the file says which. */
	if (file.path && file.table && json_array_size(choices.results))
		written = output_write(&file, results_document(&choices, subcommand->name, &gpus));
	output_close(&file);
	json_decref(choices.results);
	json_decref(choices.skipped);
	return written ? written : code;
}

static const struct command_option options[] = {
	{ .name = "memory",
	  .letter = 'm',
	  .argument = "MEM",
	  .help = "GPU memory to use; default cuda:0 and vmm:cuda:0",
	  .many = true },
	{ .name = "backend",
	  .letter = 'b',
	  .argument = "NAME",
	  .complete = "driver dmabuf rm rm-watch staged",
	  .help = "driver, dmabuf, rm, rm-watch, staged; default: those of the setting window" },
	{ .name = "test", .letter = 't', .argument = "NAME", .help = "check: run only this test" },
	{ .name = "size",
	  .letter = 's',
	  .argument = "SIZE",
	  .help = "bandwidth, latency, api: size of the largest window" },
	{ .name = "rounds",
	  .letter = 'r',
	  .argument = "N",
	  .help = "number of rounds; not for check" },
	{ .name = "threads",
	  .letter = 'n',
	  .argument = "N",
	  .help = "bandwidth: use up to N threads; default 8" },
	{ .name = "ways",
	  .help = "bandwidth: also measure each instruction set of the CPU",
	  .rare = true },
	{ .name = "json",
	  .letter = 'j',
	  .argument = "FILE",
	  .complete = "file",
	  .help = "write all results to FILE; - is stdout" },
	{ .name = "config",
	  .letter = 'c',
	  .argument = "NAME=VALUE",
	  .complete = "setting",
	  .help = "change a setting; wherry config lists them",
	  .many = true,
	  .rare = true },
	{ 0 },
};

const struct command command_window = {
	.name = "window",
	.usage = "WHAT",
	.complete = "check bandwidth latency api pingpong",
	.summary = "Check and measure CPU windows on GPU memory",
	.details = "WHAT is check (does a window show the GPU's memory, and nothing else?), "
		   "bandwidth, latency, api (opening and closing windows) or pingpong (CPU and GPU "
		   "answer each other).\n\n"
		   "MEM is [KIND:]cuda:GPU. KIND is device (cuMemAlloc, the default), vmm "
		   "(cuMemCreate) or pool (cuMemAllocAsync); GPU is a number, a GPU-UUID (or its "
		   "start) or a PCI address. The option may be given several times.\n\n"
		   "check runs each test in a process of its own, so a crash fails only that test. "
		   "A test that does not apply, such as passing a descriptor where a backend has "
		   "none, is waived with the reason. The exit code is 2 if a test failed, and 69 "
		   "if there is no GPU, no such backend, or nothing that could be tested.\n\n"
		   "bandwidth measures in GB/s (10^9 bytes a second), in turns: writes and reads "
		   "through the window as the library does them (long reads use the GPU's copy "
		   "engine), the same by memcpy of the C library, and the driver's copy between "
		   "pinned memory and the same GPU memory. Then several threads write and read at "
		   "once; their reads are loads. Then recv() from TCP connections over loopback "
		   "writes straight into the window, and into pinned memory for comparison. --size "
		   "is the size of the window, 64MiB by default; --rounds is the number of turns, "
		   "at most 9.\n\n"
		   "latency measures one access, in microseconds, without the cost of reading the "
		   "clock. write ends when it is issued, write+flush when the data has arrived. "
		   "Cold: the host's bytes are in none of the CPU's caches at the start. The "
		   "driver's copy is measured for comparison.\n\n"
		   "api measures how long it takes to open a window (pin and map), to open one on "
		   "memory that has a window, to query it, and to close it (unmap and unpin), each "
		   "with a histogram. --size is the size of the largest window: 64MiB by default, "
		   "at most 1GiB.\n\n"
		   "pingpong: the CPU writes a number; a kernel on the GPU waits for it and "
		   "answers with another number, for which the CPU waits. Each number is in the "
		   "GPU's memory (window) or in the host's (pinned). bare is the same with plain "
		   "loads and stores. --rounds is the number of round trips in a game; the result "
		   "is the median of nine games.",
	.examples = "wherry window check --backend driver    # through /dev/gdrdrv\n"
		    "wherry window bandwidth -m cuda:0 -j window.json\n",
	.options = options,
	.least = 1,
	.most = 1,
	.run = window_run,
};
