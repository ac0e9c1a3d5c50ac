/* SPDX-License-Identifier: Apache-2.0 */
/* wherry copy: the command line, the transfer from one end to the other, the result. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/evp.h>

#include "copy/copy.h"
#include "copy/tree.h"
#include "engine.h"
#include "output.h"

#define CHUNK_LEAST 4096
#define CHUNK_MOST (UINT64_C(1) << 30)
#define CHUNK_USUAL (UINT64_C(4) << 20)

struct copy {
	const struct arguments *arguments;
	struct end source, target;
	uint64_t chunk, offset, length; /* length: COPY_UNKNOWN: all there is */
	uint64_t connections; /* 0: the default */
	bool verify, quiet, json;
	struct wh_engine *engine;
	/* The result. */
	uint64_t copied;
	double seconds;
	char digest[2 * EVP_MAX_MD_SIZE + 1]; /* "": none */
};

/* ---- the command line ------------------------------------------------------------------------ */

/* `named`: Mooncake engines have names, because there is a metadata store. */
static int parse_end(struct end *end, const char *text, const char *dash, bool named)
{
	const char *wrong;

	*end = (struct end){ .text = text, .name = text, .kind = END_FILE, .fd = -1 };
	if (strcmp(text, "-") == 0)
		end->name = dash;
	if (mooncake_url_is(text)) {
		wrong = mooncake_url_parse(text, named, &end->mooncake_url);
		end->kind = END_MOONCAKE;
		return wrong ? usage_error("'%s' %s", text, wrong) : 0;
	}
	if (!url_is(text)) {
		if (strstr(text, "://"))
			return usage_error(
				"'%s' is no address: addresses start with wherry:// or mooncake://",
				text);
		return *text ? 0 : usage_error("the name of a file is empty");
	}
	wrong = url_parse(text, &end->url);
	if (wrong)
		return usage_error("'%s' %s", text, wrong);
	if (!end->url.region[0])
		return usage_error("'%s' names no region: write wherry://HOST:PORT/REGION", text);
	end->kind = END_REMOTE;
	return 0;
}

static int parse_sizes(struct copy *copy)
{
	const char *text;

	copy->chunk = CHUNK_USUAL;
	copy->length = COPY_UNKNOWN;
	text = argument(copy->arguments, "chunk");
	if (text && parse_size(text, "--chunk", &copy->chunk))
		return EXIT_USAGE;
	if (copy->chunk < CHUNK_LEAST || copy->chunk > CHUNK_MOST)
		return usage_error("--chunk: %s is not between 4KiB and 1GiB", text);
	text = argument(copy->arguments, "length");
	if (text && parse_size(text, "--length", &copy->length))
		return EXIT_USAGE;
	if (!copy->length)
		return usage_error("--length: at least 1 byte");
	text = argument(copy->arguments, "offset");
	if (text && parse_size(text, "--offset", &copy->offset))
		return EXIT_USAGE;
	if (copy->offset > INT64_MAX || (copy->length > INT64_MAX && copy->length != COPY_UNKNOWN))
		return usage_error("no file is that long");
	text = argument(copy->arguments, "connections");
	if (text && parse_count(text, "--connections", 1, 64, &copy->connections))
		return EXIT_USAGE;
	return 0;
}

/* Options of Wherry's connections need a wherry:// end; --mooncake-metadata needs a mooncake://
 * end. */
static int check_mooncake(const struct copy *copy)
{
	static const char *const names[] = { "transport", "require", "connections" };

	if (argument(copy->arguments, "mooncake-metadata") && copy->source.kind != END_MOONCAKE &&
	    copy->target.kind != END_MOONCAKE)
		return usage_error("--mooncake-metadata needs an address mooncake://");
	if (copy->source.kind == END_REMOTE || copy->target.kind == END_REMOTE)
		return 0;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (argument(copy->arguments, names[i]))
			return usage_error("--%s needs an address wherry://; memory of a Mooncake "
					   "engine is reached "
					   "over Mooncake's own TCP, with %d connections",
					   names[i], COPY_SLOTS);
	return 0;
}

static int copy_parse(struct copy *copy)
{
	const struct arguments *arguments = copy->arguments;
	const char *transport = argument(arguments, "transport");
	const char *require = argument(arguments, "require");
	bool output = strcmp(arguments->operands[1], "-") == 0;
	bool named = argument(arguments, "mooncake-metadata");
	int code = parse_end(&copy->source, arguments->operands[0], "standard input", named);

	if (!code)
		code = parse_end(&copy->target, arguments->operands[1], "standard output", named);
	if (!code)
		code = parse_sizes(copy);
	if (!code)
		code = engine_parse_stall(arguments);
	if (!code)
		code = check_choice(arguments, "transport");
	if (code)
		return code;
	copy->verify = argument(arguments, "verify");
	copy->quiet = argument(arguments, "quiet");
	copy->json = argument(arguments, "json");
	if (!end_is_remote(&copy->source) && !end_is_remote(&copy->target))
		return usage_error("SRC or DST must be an address wherry://HOST:PORT/REGION; to "
				   "copy a file to "
				   "a file use cp, which copies without an engine");
	if (end_is_remote(&copy->source) && end_is_remote(&copy->target) && copy->offset)
		return usage_error("--offset is for files; write wherry://HOST:PORT/REGION+OFFSET");
	code = check_mooncake(copy);
	if (code)
		return code;
	if (transport && require && strcmp(transport, require) != 0)
		return usage_error("--transport names %s and --require names %s", transport,
				   require);
	if (output && copy->verify)
		return usage_error(
			"--verify reads the copy back, which standard output does not allow");
	if (output && copy->json)
		return usage_error("--json writes to standard output, and so does the copy");
	return 0;
}

/* ---- copying --------------------------------------------------------------------------------- */

static int open_engine(struct copy *copy)
{
	char connections[32];
	const char *config[] = { connections, NULL };
	struct engine_setup setup = {
		.listen = "none",
		.require = argument(copy->arguments, "transport"),
	};

	snprintf(connections, sizeof(connections), "connections=%llu",
		 (unsigned long long)copy->connections);
	if (copy->connections)
		setup.config = config;
	return engine_open(copy->arguments, &setup, &copy->engine);
}

static int open_source(struct copy *copy)
{
	struct end *source = &copy->source;
	int code;

	if (source->kind == END_REMOTE)
		code = remote_open(source, copy->engine, WH_ACCESS_READ, copy->quiet);
	else if (source->kind == END_MOONCAKE)
		code = mooncake_open(source, argument(copy->arguments, "mooncake-metadata"),
				     copy->quiet);
	else
		code = file_open_source(source, copy->offset);
	if (code || copy->length == COPY_UNKNOWN) {
		copy->length = source->length;
		return code;
	}
	if (source->length != COPY_UNKNOWN && copy->length > source->length)
		return fail(ERANGE, "%s has %llu bytes from that offset on, not %llu", source->name,
			    (unsigned long long)source->length, (unsigned long long)copy->length);
	return 0;
}

static int open_target(struct copy *copy)
{
	struct end *target = &copy->target;
	uint32_t access = WH_ACCESS_WRITE | (copy->verify ? WH_ACCESS_READ : 0);
	int code;

	if (!end_is_remote(target)) {
		code = file_open_target(target, copy->offset, argument(copy->arguments, "offset"));
		if (!code && copy->verify && target->kind == END_STREAM)
			code = fail(EINVAL, "--verify cannot read %s back", target->name);
		if (!code && copy->length != COPY_UNKNOWN)
			code = file_reserve(target, copy->length);
		return code;
	}
	if (target->kind == END_MOONCAKE)
		code = mooncake_open(target, argument(copy->arguments, "mooncake-metadata"),
				     copy->quiet);
	else
		code = remote_open(target, copy->engine, access, copy->quiet);
	if (code || copy->length == COPY_UNKNOWN || copy->length <= target->length)
		return code;
	return fail(ERANGE, "%s has room for %llu bytes, not %llu; set --length to copy less",
		    target->name, (unsigned long long)target->length,
		    (unsigned long long)copy->length);
}

/* Both ends are memory of one engine, so their addresses can be compared. */
static bool is_of_one_owner(const struct end *a, const struct end *b)
{
	struct wh_peer_info one = { .size = sizeof(one) }, other = { .size = sizeof(other) };

	if (a->kind != b->kind || !end_is_remote(a))
		return false;
	if (a->kind == END_MOONCAKE)
		return strcmp(a->mooncake_url.engine, b->mooncake_url.engine) == 0;
	return !wh_peer_info(a->peer, &one) && !wh_peer_info(b->peer, &other) &&
	       one.epoch == other.epoch;
}

/* Choose the direction in which overlapping memory is read before it is overwritten. */
static int choose_direction(const struct copy *copy, struct pipeline *pipeline)
{
	const struct end *source = &copy->source, *target = &copy->target;
	uint64_t distance;

	if (!is_of_one_owner(source, target))
		return 0;
	/* In Mooncake memory the offset is the address. */
	distance = target->offset - source->offset;
	if (source->kind == END_REMOTE)
		distance += target->remote.address - source->remote.address;
	if (!distance || (distance >= copy->length && -distance >= copy->length))
		return 0;
	if (copy->verify)
		return fail(
			EINVAL,
			"%s overlaps %s: the copy overwrites its source, and --verify would have "
			"nothing to compare it with",
			target->name, source->name);
	pipeline->backwards = distance < copy->length;
	return 0;
}

static double copy_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Write the digest as text and reset its context. */
static int read_digest(EVP_MD_CTX *context, char *out)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned length;

	if (!EVP_DigestFinal_ex(context, bytes, &length) ||
	    !EVP_DigestInit_ex(context, EVP_sha256(), NULL))
		return fail(EIO, "SHA-256 failed");
	for (size_t i = 0; i < length; i++)
		sprintf(out + 2 * i, "%02x", bytes[i]);
	return 0;
}

/* A stream cannot be read again, so its bytes are hashed on the way. Other sources are read once
 * more and compared, so that the copy itself runs at full speed. */
static int copy_and_verify(struct copy *copy, struct pipeline *pipeline, EVP_MD_CTX *context)
{
	bool stream = copy->source.kind == END_STREAM;
	char sent[sizeof(copy->digest)] = "";
	struct progress progress;
	double start = copy_now();
	int code;

	progress_start(&progress, "copying", copy->length == COPY_UNKNOWN ? 0 : copy->length,
		       copy->quiet);
	code = pipeline_copy(pipeline, copy->length, stream ? context : NULL, &progress,
			     &copy->copied);
	copy->seconds = copy_now() - start;
	progress_end(&progress);
	if (!code && copy->length != COPY_UNKNOWN && copy->copied < copy->length)
		return fail(EIO, "%s ended after %llu bytes", copy->source.name,
			    (unsigned long long)copy->copied);
	if (code || !copy->verify)
		return code;
	if (stream)
		code = read_digest(context, sent);
	progress_start(&progress, "verifying", copy->copied, copy->quiet);
	if (!code)
		code = pipeline_verify(pipeline, copy->copied, !stream, context, &progress);
	progress_end(&progress);
	if (!code)
		code = read_digest(context, copy->digest);
	if (!code && stream && strcmp(sent, copy->digest) != 0)
		code = fail(EIO,
			    "the copy is wrong: its SHA-256 is %s, that of the bytes sent is %s",
			    copy->digest, sent);
	return code;
}

static int copy_transfer(struct copy *copy)
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	struct pipeline pipeline;
	int code;

	if (!context || !EVP_DigestInit_ex(context, EVP_sha256(), NULL)) {
		EVP_MD_CTX_free(context);
		return fail(ENOMEM, "OpenSSL provides no SHA-256");
	}
	code = pipeline_open(&pipeline, copy->engine, &copy->source, &copy->target, copy->chunk);
	if (!code)
		code = choose_direction(copy, &pipeline);
	if (!code)
		code = copy_and_verify(copy, &pipeline, context);
	code = pipeline_close(&pipeline, code);
	EVP_MD_CTX_free(context);
	return code ? code : file_commit(&copy->target);
}

/* ---- the result ------------------------------------------------------------------------------ */

static double copy_rate(const struct copy *copy)
{
	return copy->seconds > 0 ? (double)copy->copied / copy->seconds / 1e9 : 0;
}

/* Refusals that no user would wonder about are shown by --verbose only. */
void end_print_routes(FILE *out, const struct end *end, const char *verb, bool verbose)
{
	for (size_t i = 0; i < end->route_count; i++) {
		const struct wh_route *route = &end->routes[i];

		if (route->bytes)
			fprintf(out, "%s by %s%s%s%s: %llu bytes in %llu transfers\n", verb,
				route->transport, *route->detail ? " (" : "", route->detail,
				*route->detail ? ")" : "", (unsigned long long)route->bytes,
				(unsigned long long)route->transfers);
	}
	for (size_t i = 0; i < end->route_count; i++)
		if (*end->routes[i].refused && (verbose || !end->routes[i].inapplicable))
			fprintf(out, "not by %s: %s\n", end->routes[i].transport,
				end->routes[i].refused);
}

static void print_text(const struct copy *copy)
{
	/* Nothing may follow the bytes on standard output. */
	FILE *out = strcmp(copy->target.text, "-") == 0 ? stderr : stdout;
	bool verbose = argument(copy->arguments, "verbose");

	fprintf(out, "copied %llu bytes", (unsigned long long)copy->copied);
	if (copy->copied >= 1 << 20)
		fprintf(out, " (%.1f MiB)", (double)copy->copied / 0x1p20);
	fprintf(out, " in %.3f s, %.2f GB/s\n", copy->seconds, copy_rate(copy));
	end_print_routes(out, &copy->source, "read", verbose);
	end_print_routes(out, &copy->target, "written", verbose);
	if (copy->verify)
		fprintf(out, "verified: read back, sha256 %s\n", copy->digest);
}

void end_add_routes(struct json_t *list, const struct end *end, const char *op)
{
	for (size_t i = 0; i < end->route_count; i++) {
		const struct wh_route *route = &end->routes[i];

		json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:I, s:I, s:o, s:b}", "op",
						      op, "transport", route->transport, "detail",
						      output_text(route->detail), "bytes",
						      (json_int_t)route->bytes, "transfers",
						      (json_int_t)route->transfers, "refused",
						      output_text(route->refused), "inapplicable",
						      route->inapplicable));
	}
}

static int print_json(const struct copy *copy)
{
	json_t *object = output_new(), *routes = json_array();

	json_object_set_new(object, "source", json_string(copy->source.text));
	json_object_set_new(object, "target", json_string(copy->target.text));
	json_object_set_new(object, "size_bytes", json_integer((json_int_t)copy->copied));
	json_object_set_new(object, "duration_seconds", json_real(copy->seconds));
	json_object_set_new(object, "bandwidth_GBps", json_real(copy_rate(copy)));
	end_add_routes(routes, &copy->source, "read");
	end_add_routes(routes, &copy->target, "write");
	json_object_set_new(object, "routes", routes);
	json_object_set_new(object, "verified", copy->verify ? json_true() : json_null());
	json_object_set_new(object, "sha256", output_text(copy->digest));
	return output_print(object);
}

static int copy_run(const struct arguments *arguments)
{
	struct copy copy = { .arguments = arguments };
	int code;

	if (tree_wanted(arguments))
		return tree_run(arguments);
	code = copy_parse(&copy);
	if (!code)
		code = open_engine(&copy);
	if (code)
		return code;
	code = open_source(&copy);
	if (!code)
		code = open_target(&copy);
	if (!code)
		code = copy_transfer(&copy);
	mooncake_close(&copy.source);
	mooncake_close(&copy.target);
	file_close(&copy.source);
	file_close(&copy.target);
	code = remote_close(&copy.source, code);
	code = remote_close(&copy.target, code);
	code = engine_close(copy.engine, code);
	if (code)
		return code;
	if (copy.json)
		return print_json(&copy);
	if (!copy.quiet)
		print_text(&copy);
	return EXIT_PASS;
}

static const struct command_option options[] = {
	{ .name = "recursive", .letter = 'r', .help = "copy directories, from or to a server's" },
	{ .name = "resume", .help = "go on with a copy that was interrupted" },
	{ .name = "length", .argument = "SIZE", .help = "how many bytes to copy; by default all" },
	{ .name = "offset", .argument = "SIZE", .help = "where to start in the file" },
	{ .name = "transport",
	  .letter = 't',
	  .argument = "TRANSPORT",
	  .complete = "self cuda shm rdma tcp local",
	  .help = "the same as --require" },
	{ .name = "connections", .argument = "N", .help = "TCP connections to each peer" },
	{ .name = "chunk",
	  .argument = "SIZE",
	  .rare = true,
	  .help = "bytes a chunk; by default 4MiB" },
	{ .name = "mooncake-metadata",
	  .argument = "URL",
	  .rare = true,
	  .help = "where Mooncake engines find each other by name, mooncake://NAME/ADDRESS: "
		  "http://HOST:PORT/PATH (such as metadata) or etcd://HOST:PORT; @FILE: a file "
		  "of mode 0600 with the URL, which has a user and a password" },
	STALL_OPTION,
	{ .name = "verify", .help = "read the copy back, compare, print its SHA-256" },
	{ .name = "quiet", .letter = 'q', .help = "print errors only" },
	{ .name = "json", .letter = 'j', .help = "print the result as JSON" },
	ENGINE_OPTIONS,
	{ 0 },
};

const struct command command_copy = {
	.name = "copy",
	.usage = "SRC... DST",
	.summary = "Copy bytes from a file or a region to another",
	.details = "SRC and DST are files, - (standard input, output) or regions. A region is "
		   "wherry://HOST:PORT/REGION[+OFFSET], which may be GPU memory, or memory of a "
		   "Mooncake engine, mooncake://HOST:PORT/ADDRESS[+OFFSET]; without ADDRESS the "
		   "error lists what the engine has. Mooncake memory is reached over Mooncake's "
		   "TCP, which does not prove the engine's identity.\n"
		   "\n"
		   "At the end the command prints the rate, the route that the bytes took and "
		   "why better routes were refused; --verbose adds routes for other peers, "
		   "other settings or devices that are not here. Bytes from region to region "
		   "pass through this process.\n"
		   "\n"
		   "A file gets its name once it is complete, so nobody sees half a file, and "
		   "nothing stays behind if the copy fails or is killed (on file systems that "
		   "have files without a name; on others kill -9 leaves .NAME.XXXXXX). With "
		   "--offset the other bytes of the file are kept.\n"
		   "\n"
		   "Files of a directory that wherry serve --dir offers are "
		   "wherry://HOST:PORT/NAME/PATH; SRC or DST may be one. With --recursive what is "
		   "in the directory SRC goes into the directory DST, which is created if it is "
		   "missing; of several SRC each gets its own name in DST. Modes, times of change "
		   "and holes are kept. Symbolic links and special files are left out, with a line "
		   "on stderr and status 1. A file that is being written is .NAME.wherry-part, and "
		   "gets its name once it is complete and on the disk. --resume leaves files as "
		   "they are that have the length and the checksums (SHA-256 of each 8 MiB) of "
		   "their source, and copies of unfinished ones the blocks that differ; it reads "
		   "all bytes on both sides.\n"
		   "\n"
		   "If an engine answers but moves nothing for --stall-timeout, the copy ends "
		   "with status 69.\n"
		   "\n"
		   "--verify reads the copy back and compares it with the source. Standard "
		   "input cannot be read twice: there the SHA-256 of the copy is compared with "
		   "that of the bytes sent.",
	.examples = "wherry copy model.bin wherry://127.0.0.1:7000/host --verify\n"
		    "wherry copy wherry://127.0.0.1:7000/cuda-0 weights.bin\n"
		    "wherry copy --recursive models wherry://node7:7000/models\n"
		    "wherry copy mooncake://node7:12345/0x7f2a40000000 kv.bin --length 64MiB\n",
	.options = options,
	.least = 2,
	.most = INT_MAX,
	.run = copy_run,
};
