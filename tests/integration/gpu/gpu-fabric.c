/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: fake-nvml gpu no-threads-target */
/* gpu-fabric.c: GPU memory of another host in one NVLink domain, by fabric handles
 *
 * The other host is a child with another boot id. The fake CUDA driver's fabric is a directory, and
 * the fake NVML says which cluster and clique the GPUs of each are in. TLS is off, but for the
 * tests of the setting `fabric`. */
#include <dlfcn.h>
#include <fcntl.h>

#include "lib/command.h"
#include "lib/container.h"
#include "lib/fixture.h"
#include "lib/gpu.h"
#include "lib/proxy.h"
#include "lib/raw.h"
#include "transport/cuda/wire.h"

#define LENGTH (2 * MIB)

static char world[64]; /* where the fake driver keeps memory, in files "NAME #PID-..." */
static char other_boot[80]; /* a file with another boot id */

static const char *missing_fabric(void)
{
	if (!getenv("TEST_CUDA") || !getenv("TEST_NVML"))
		return "it takes the fake CUDA driver and the fake NVML";
	return needs_containers.missing();
}

static const struct route needs_fabric = { .name = "fabric", .missing = missing_fabric };

/* ---- two hosts ---------------------------------------------------------------------------------
 */

struct host {
	unsigned state, clique; /* as NVML says */
	const char *cluster; /* two numbers */
	unsigned imex; /* the clique of the driver's fabric; 0: no IMEX channel */
	const char *fail; /* FAKE_CUDA_FAIL */
	const char *config[2];
};
#define CLUSTER "0x0011223344556677 0x8899aabbccddeeff"
static const struct host good = { .state = 3, .clique = 7, .cluster = CLUSTER, .imex = 7 };

/* The answers of NVML on that host, for processes that start from now on, or that ask from now on:
 * in a file, whose path goes to `path`. */
static void nvml_say(const struct host *host, const char *name, char path[96])
{
	unsigned char uuid[16];
	FILE *file;

	snprintf(path, 96, "%s.%s", world, name);
	file = fopen(path, "we");
	want_true(file, "%s: %s", path, strerror(errno));
	fprintf(file, "nvmlDeviceGetCount : 0 %u\n", bytes_gpus());
	for (unsigned i = 0; i < bytes_gpus(); i++) {
		want(0, CU(cuDeviceGetUuid_v2, (unsigned char *, int), uuid, (int)i));
		fprintf(file, "nvmlDeviceGetHandleByIndex %u : 0\nnvmlDeviceGetUUID %u : 0 GPU-", i,
			i);
		for (int k = 0; k < 16; k++)
			fprintf(file, "%s%02x", k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "",
				uuid[k]);
		fprintf(file, "\nnvmlDeviceGetGpuFabricInfoV %u : 0 %u 0 %u %s\n", i, host->state,
			host->clique, host->cluster);
	}
	fclose(file);
	setenv("FAKE_NVML", path, 1);
}

static void set_number(const char *name, unsigned value)
{
	char text[16];

	snprintf(text, sizeof(text), "%u", value);
	setenv(name, text, 1);
}

/* A child on another host. Its environment is not this process's. */
static struct child *far_start(const struct host *host)
{
	struct container container = { .namespaces = CLONE_NEWNS, .boot = other_boot };
	struct child_options options = { .container = &container };
	char path[96];
	struct child *child;

	for (int i = 0; i < 2; i++)
		options.config[i] = host->config[i];
	nvml_say(host, "there", path);
	set_number("FAKE_CUDA_FABRIC", host->imex);
	if (host->fail)
		setenv("FAKE_CUDA_FAIL", host->fail, 1);
	child = child_start(&options);
	unsetenv("FAKE_CUDA_FAIL");
	set_number("FAKE_CUDA_FABRIC", good.imex);
	return child;
}

/* This process as `near`, and a child as `far`, whose memory is the target. */
static void hosts_open(struct gpu_pair *p, uint32_t here, uint32_t there, const struct host *near,
		       const struct host *far)
{
	struct child *child = far_start(far);
	char path[96];

	nvml_say(near, "here", path);
	gpu_pair_open_with(p, here, bytes_on_gpu(here) ? "cuda:1" : NULL, there,
			   bytes_on_gpu(there) ? "cuda:0" : NULL, LENGTH, child);
}

/* Mappings here of memory that the process has created. */
static unsigned mappings_of(pid_t owner)
{
	char line[512], name[24];
	unsigned count = 0;
	FILE *file = fopen("/proc/self/maps", "re");

	want_true(file, "%s", strerror(errno));
	snprintf(name, sizeof(name), " #%d-", (int)owner);
	while (fgets(line, sizeof(line), file))
		count += strstr(line, world) && strstr(line, name);
	fclose(file);
	return count;
}

static void await_no_mappings(pid_t owner)
{
	int64_t end = now() + 3 * PATIENCE;

	while (mappings_of(owner) && now() < end)
		sleep_ms(2);
	want(0, mappings_of(owner));
}

static void explain(struct wh_batch *batch, char out[4096])
{
	want_true(wh_batch_explain(batch, out, 4096) >= 0, "%s", wh_error_text());
}

/* Run a batch; its bytes go by this transport, and the explanation has the word. */
static void want_by(struct gpu_pair *p, uint32_t op, const char *transport, const char *word)
{
	struct wh_batch *batch = gpu_pair_batch(p, op);
	struct wh_route routes[8];
	size_t count = 8;
	char text[4096];
	bool by = false;

	want(0, gpu_run(batch));
	explain(batch, text);
	want(0, wh_batch_routes(batch, routes, &count));
	for (size_t i = 0; i < count; i++)
		by = by || (routes[i].bytes && !strcmp(routes[i].transport, transport));
	want_true(by, "not by %s:\n%s", transport, text);
	want_true(strstr(text, word), "no \"%s\" in:\n%s", word, text);
	want(0, wh_batch_free(batch));
}

/* Write and read; the bytes are right on both sides. */
static void exchange(struct gpu_pair *p, const char *transport, const char *word)
{
	static uint64_t seed = 20;
	unsigned char *bytes = malloc(p->length);

	gpu_pair_fill(p, ++seed);
	want_by(p, WH_WRITE, transport, word);
	want_true(gpu_pair_copied(p, seed), "other bytes were written");
	child_fill(p->child, p->memory, 0, p->length, 0, ++seed);
	want_by(p, WH_READ, transport, word);
	bytes_get(bytes, p->local, p->length, p->here);
	want_true(pattern_check(bytes, p->length, 0, seed) == PATTERN_GOOD,
		  "other bytes were read");
	free(bytes);
}

static void fabric_on(void)
{
	setenv("WHERRY_FABRIC", "on", 1);
}

static void fabric_default(void)
{
	unsetenv("WHERRY_FABRIC");
	unsetenv("WHERRY_TLS");
}

/* ---- bytes ------------------------------------------------------------------------------------
 */

/* To and from each kind of memory here; there it is of cuMemCreate. Few bytes go the same way, as
 * no CPU window shows another host's memory. */
static void fabric__bytes(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_VMM, WH_MEMORY_DEVICE, WH_MEMORY_PINNED,
					  WH_MEMORY_PAGEABLE, WH_MEMORY_SHARED };

	(void)state;
	fabric_on();
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		struct wh_transfer few = { .length = 8, .op = WH_WRITE };
		struct wh_batch *batch;
		struct gpu_pair p;
		char text[4096];

		hosts_open(&p, kinds[i], WH_MEMORY_VMM, &good, &good);
		exchange(&p, "cuda", ", NVLink domain");
		gpu_pair_fill(&p, i);
		few.local = p.region;
		few.remote = p.remote.id;
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &few, 1));
		want(0, gpu_run(batch));
		explain(batch, text);
		want_true(strstr(text, ", NVLink domain"), "%s", text);
		want(PATTERN_GOOD, child_check(p.child, p.memory, 0, 8, 0, i));
		want(PATTERN_GOOD, child_check(p.child, p.memory, 8, LENGTH - 8, 8, i + 1000));
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
	fabric_default();
}

/* A region of more mappings than one question is answered for. */
static void fabric__segments(void **state)
{
	struct gpu_pair p;
	char path[96];

	(void)state;
	fabric_on();
	p.child = far_start(&good);
	nvml_say(&good, "here", path);
	gpu_pair_open_with(&p, WH_MEMORY_VMM, "cuda:1", CHILD_FABRIC, "cuda:0", 70 * MIB, p.child);
	exchange(&p, "cuda", ", NVLink domain");
	gpu_pair_close(&p);
	fabric_default();
}

static void fabric__blocks(void **state)
{
	enum { BLOCK = 4096, COUNT = LENGTH / BLOCK };
	uint64_t here[COUNT], there[COUNT];
	struct wh_base base;
	struct wh_blocks_desc desc = { .size = sizeof(desc),
				       .op = WH_WRITE,
				       .block_length = BLOCK,
				       .count = COUNT,
				       .bases = &base,
				       .base_count = 1,
				       .local_offsets = here,
				       .remote_offsets = there };
	struct wh_blocks *blocks;
	struct wh_batch *batch;
	struct gpu_pair p;
	char text[4096];

	(void)state;
	fabric_on();
	hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &good);
	pattern_shuffle(here, COUNT, BLOCK, 1);
	pattern_shuffle(there, COUNT, BLOCK, 2);
	base = (struct wh_base){ .local = p.region, .remote = p.remote.id };
	for (uint64_t seed = 1; seed < 4; seed++) {
		gpu_pair_fill(&p, seed);
		want(0, wh_blocks_new(p.peer, &desc, &blocks));
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add_blocks(batch, blocks));
		want(0, gpu_run(batch));
		explain(batch, text);
		want_true(strstr(text, ", NVLink domain"), "%s", text);
		for (unsigned i = 0; i < COUNT; i++)
			want(PATTERN_GOOD,
			     child_check(p.child, p.memory, there[i], BLOCK, here[i], seed));
		want(0, wh_batch_free(batch));
		want(0, wh_blocks_free(blocks));
	}
	gpu_pair_close(&p);
	fabric_default();
}

/* ---- ends --------------------------------------------------------------------------------------
 */

/* The owner is killed, with and without a batch in flight: batches fail, and what was mapped of its
 * memory is no longer, although nobody has closed the peer. */
static void fabric__owner_killed(void **state)
{
	(void)state;
	fabric_on();
	for (int i = 0; i < 2; i++) {
		struct wh_batch *batch;
		struct gpu_pair p;
		int64_t begun, end;
		bool late;
		int status;
		pid_t owner;

		hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &good);
		owner = p.child->pid;
		exchange(&p, "cuda", ", NVLink domain");
		want_true(mappings_of(owner), "nothing was mapped");
		batch = gpu_pair_batch(&p, WH_WRITE);
		begun = now();
		if (i) {
			fake_delay(2000000);
			want(0, wh_batch_submit(batch));
		}
		child_kill(p.child);
		p.child = NULL;
		if (i) {
			while (!wh_peer_find(p.peer, "target", WH_ANSWER, &p.remote))
				sleep_ms(2);
			/* Or the copy may have ended before the connection told of it. */
			late = now() - begun > SECOND;
			status = batch_end(batch, 3 * PATIENCE);
			want_true(status == -ECONNRESET || (late && !status), "%d", status);
			fake_delay(0);
		}
		end = now() + 3 * PATIENCE;
		while (!(status = gpu_run(batch)) && now() < end)
			;
		want(-ECONNRESET, status);
		want(0, wh_batch_free(batch));
		await_no_mappings(owner);
		gpu_pair_close(&p);
	}
	fabric_default();
}

/* The initiator is killed while it copies: the owner takes its region back, and frees it. */
static void fabric__initiator_killed(void **state)
{
	struct child_transfer transfer = { .op = WH_WRITE,
					   .remote = "target",
					   .length = LENGTH,
					   .times = 200,
					   .go = true,
					   .require = "cuda" };
	struct child *owner, *initiator;
	int memory, region, local;

	(void)state;
	fabric_on();
	owner = far_start(&good);
	memory = child_memory(owner, WH_MEMORY_VMM, LENGTH);
	region = child_region(owner, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	initiator = child_start(NULL);
	local = child_memory(initiator, WH_MEMORY_VMM, LENGTH);
	transfer.region = child_region(initiator, local, 0, LENGTH, NULL, 0, NULL);
	transfer.peer = child_peer(initiator, owner->url, NULL);
	want(0, child_transfer(initiator, &transfer, NULL));
	child_kill(initiator);
	want(0, child_unregister(owner, region));
	want(0, child_free(owner, memory));
	child_exit(owner);
	fabric_default();
}

/* The owner takes its region back while an initiator copies: that one ends its mapping first. */
static void fabric__unregistered(void **state)
{
	(void)state;
	fabric_on();
	for (int i = 0; i < 3; i++) {
		struct wh_batch *batch;
		struct gpu_pair p;
		int status;

		hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &good);
		exchange(&p, "cuda", ", NVLink domain");
		batch = gpu_pair_batch(&p, WH_WRITE);
		if (i)
			fake_delay(500000);
		want(0, wh_batch_submit(batch));
		want(0, child_unregister(p.child, p.child_region));
		want(0, mappings_of(p.child->pid));
		want(0, child_free(p.child, p.memory));
		want(0, batch_end(batch, 3 * PATIENCE));
		fake_delay(0);
		status = gpu_run(batch);
		want_true(status == -ESTALE || status == -ENOENT, "%d", status);
		want(0, wh_batch_free(batch));
		gpu_pair_close(&p);
	}
	fabric_default();
}

/* Our own region goes: the mapping of the peer's stays for others, and goes with the peer. */
static void fabric__own_unregistered(void **state)
{
	struct gpu_pair p;

	(void)state;
	fabric_on();
	hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &good);
	exchange(&p, "cuda", ", NVLink domain");
	want(0, wh_region_unregister(p.region));
	want(0, wh_region_register(p.engine, p.local, LENGTH, NULL, &p.region));
	exchange(&p, "cuda", ", NVLink domain");
	want(0, wh_peer_close(p.peer));
	want(0, mappings_of(p.child->pid));
	want(0, wh_peer_open(p.engine, p.child->url, NULL, &p.peer));
	want(0, wh_peer_find(p.peer, "target", PATIENCE, &p.remote));
	exchange(&p, "cuda", ", NVLink domain");
	gpu_pair_close(&p);
	fabric_default();
}

/* The connection breaks, and both live: the mapping ends, and the memory is mapped again, unless
 * the region went meanwhile. */
static void fabric__reconnected(void **state)
{
	struct child *child;
	struct proxy *proxy;
	struct wh_batch *batch;
	struct gpu_pair p;
	char path[96];
	int64_t end = now() + 3 * PATIENCE;
	int status;

	(void)state;
	fabric_on();
	child = far_start(&good);
	nvml_say(&good, "here", path);
	proxy = proxy_start(child->url);
	want_true(proxy != NULL, "no proxy");
	snprintf(child->url, sizeof(child->url), "%s", proxy_url(proxy));
	gpu_pair_open_with(&p, WH_MEMORY_VMM, "cuda:1", WH_MEMORY_VMM, "cuda:0", LENGTH, child);
	for (int i = 0; i < 3; i++) {
		exchange(&p, "cuda", ", NVLink domain");
		batch = gpu_pair_batch(&p, WH_WRITE);
		proxy_freeze(proxy, true);
		proxy_cut(proxy, PROXY_CONTROL);
		await_no_mappings(child->pid);
		if (i == 2)
			want(0, child_unregister(child, p.child_region));
		proxy_freeze(proxy, false);
		do {
			status = gpu_run(batch);
			sleep_ms(2);
		} while (status == -ECONNRESET && now() < end);
		if (i == 2)
			want_true(status == -ESTALE || status == -ENOENT, "%d", status);
		else
			want(0, status);
		want(0, wh_batch_free(batch));
	}
	want(0, mappings_of(p.child->pid));
	gpu_pair_close(&p);
	proxy_stop(proxy);
	fabric_default();
}

/* The same while a copy uses the mapping, so that it outlives the connection: the owner learns in
 * the new session that it is used, and waits for its end before the memory is freed. */
static void fabric__reconnected_busy(void **state)
{
	int64_t end = now() + 3 * PATIENCE;
	struct child *child;
	struct proxy *proxy;
	struct wh_batch *batch, *second;
	struct gpu_pair p;
	unsigned accepted;
	char path[96];
	int status;

	(void)state;
	fabric_on();
	child = far_start(&good);
	nvml_say(&good, "here", path);
	proxy = proxy_start(child->url);
	want_true(proxy != NULL, "no proxy");
	snprintf(child->url, sizeof(child->url), "%s", proxy_url(proxy));
	gpu_pair_open_with(&p, WH_MEMORY_VMM, "cuda:1", WH_MEMORY_VMM, "cuda:0", LENGTH, child);
	exchange(&p, "cuda", ", NVLink domain");
	batch = gpu_pair_batch(&p, WH_WRITE);
	second = gpu_pair_batch(&p, WH_WRITE);
	fake_delay(1000000);
	want(0, wh_batch_submit(batch));
	accepted = proxy_accepted(proxy);
	proxy_cut(proxy, PROXY_CONTROL);
	while (proxy_accepted(proxy) == accepted && now() < end)
		sleep_ms(2);
	fake_delay(0);
	do {
		status = gpu_run(second);
		sleep_ms(2);
	} while (status == -ECONNRESET && now() < end);
	want(0, status);
	status = batch_end(batch, 3 * PATIENCE);
	want_true(!status || status == -ECONNRESET, "%d", status);
	fake_delay(1000000);
	want(0, wh_batch_submit(second));
	want(0, child_unregister(child, p.child_region));
	want(0, mappings_of(child->pid));
	fake_delay(0);
	want(0, child_free(child, p.memory));
	want(0, batch_end(second, 3 * PATIENCE));
	want(0, wh_batch_free(batch));
	want(0, wh_batch_free(second));
	gpu_pair_close(&p);
	proxy_stop(proxy);
	fabric_default();
}

/* ---- hostile initiators ------------------------------------------------------------------------
 */

/* Ask by hand, and return the error of the answer; -EPIPE: there is none. */
static int ask(int control, const struct wh_fabric_ask *question)
{
	uint8_t bytes[WH_FABRIC_ASK_MAX];
	struct wh_fabric_answer answer;
	uint8_t payload[1024];
	struct wh_frame frame;
	int length;

	if (raw_send_frame(control, WH_FRAME_FABRIC_ASK, 0, bytes,
			   wh_fabric_ask_encode(bytes, question)))
		return -EPIPE;
	do
		length = raw_receive_frame(control, &frame, payload, sizeof(payload));
	while (length >= 0 && frame.type != WH_FRAME_FABRIC_ANSWER);
	if (length < 0)
		return -EPIPE;
	want(0, wh_fabric_answer_decode(payload, (size_t)length, &answer));
	want(question->token, answer.token);
	want(question->id, answer.exported.id);
	return answer.exported.error;
}

static struct wh_fabric_ask asks_for(uint64_t id)
{
	struct wh_fabric_ask question = { .token = 77, .id = id, .domain_count = 1 };
	static const uint8_t cluster[16] = { 0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
					     0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff };

	memcpy(question.domains[0].cluster, cluster, sizeof(cluster));
	question.domains[0].clique = good.clique;
	return question;
}

/* Nobody gets a handle of what is not published to him, and what cannot be decoded ends the
 * session. */
static void fabric__hostile_asks(void **state)
{
	struct host far = good;
	struct wh_hello welcome;
	struct wh_fabric_ask question;
	uint8_t bytes[WH_FABRIC_ASK_MAX];
	struct gpu_pair p;
	uint64_t none, part;
	size_t length;
	int control;

	(void)state;
	fabric_on();
	far.config[0] = "timeout=60000";
	hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &far);
	child_region(p.child, p.memory, 0, LENGTH, "none", 0, &none);
	child_region(p.child, p.memory, 0, 4096, "part", ACCESS_BOTH, &part);
	control = raw_control(p.child->url, &welcome);
	want_true(control >= 0, "no connection");
	question = asks_for(p.remote.id);
	want(0, ask(control, &question));
	for (uint32_t shift = 0; shift < 32; shift++) {
		question.segment = UINT32_C(1) << shift;
		want(-ERANGE, ask(control, &question));
	}
	question = asks_for(none);
	want(-ESTALE, ask(control, &question));
	question = asks_for(part);
	want(-EOPNOTSUPP, ask(control, &question));
	question = asks_for(UINT64_MAX);
	want(-ESTALE, ask(control, &question));
	question = asks_for(p.remote.id);
	question.domains[0].clique++;
	want(-EOPNOTSUPP, ask(control, &question));
	exchange(&p, "cuda", ", NVLink domain");
	question = asks_for(p.remote.id);
	length = wh_fabric_ask_encode(bytes, &question);
	/* Of the owner's type; too short; too short for its count. */
	for (int i = 0; i < 3; i++) {
		bytes[20] = i == 2 ? 2 : 1;
		raw_send_frame(control, i ? WH_FRAME_FABRIC_ASK : WH_FRAME_FABRIC_ANSWER, 0, bytes,
			       i == 1 ? length - 1 : length);
		want_true(raw_closes(control, SCALE(30000, 60000)), "it takes frame %d", i);
		close(control);
		control = raw_control(p.child->url, &welcome);
	}
	close(control);
	exchange(&p, "cuda", ", NVLink domain");
	gpu_pair_close(&p);
	fabric_default();
}

/* A session has a handle, and never confirms that it has let go: the owner says so, and is free
 * once that session has ended. */
static void fabric__not_let_go(void **state)
{
	struct host far = good;
	struct wh_fabric_ask question;
	struct wh_hello welcome;
	struct child *owner;
	int memory, region, control, status;
	int64_t end = now() + 3 * PATIENCE;
	uint64_t id;

	(void)state;
	fabric_on();
	far.config[0] = SCALE("timeout=1000", "timeout=4000");
	owner = far_start(&far);
	memory = child_memory(owner, WH_MEMORY_VMM, LENGTH);
	region = child_region(owner, memory, 0, LENGTH, "target", ACCESS_BOTH, &id);
	control = raw_control(owner->url, &welcome);
	question = asks_for(id);
	want(0, ask(control, &question));
	want(-EBUSY, child_unregister(owner, region));
	close(control);
	while ((status = child_unregister(owner, region)) && now() < end)
		sleep_ms(20);
	want(0, status);
	want(0, child_free(owner, memory));
	child_exit(owner);
	fabric_default();
}

/* ---- reasons against it ------------------------------------------------------------------------
 */

/* Bytes go by TCP, right, and the explanation says why they do not go by NVLink. */
static void want_refused(uint32_t there, const struct host *near, const struct host *far,
			 const char *word)
{
	struct gpu_pair p;

	hosts_open(&p, WH_MEMORY_VMM, there, near, far);
	exchange(&p, "tcp", word);
	want(0, mappings_of(p.child->pid));
	gpu_pair_close(&p);
}

static void fabric__other_domain(void **state)
{
	struct host far = good;

	(void)state;
	fabric_on();
	far.clique = 8;
	want_refused(WH_MEMORY_VMM, &good, &far,
		     "is in another NVLink domain (cluster/clique "
		     "00112233-4455-6677-8899-aabbccddeeff/8) than "
		     "00112233-4455-6677-8899-aabbccddeeff/7");
	far = good;
	far.cluster = "0x1 0x2";
	want_refused(WH_MEMORY_VMM, &good, &far, "is in another NVLink domain");
	far.cluster = "";
	want_refused(WH_MEMORY_VMM, &good, &far, "ends at this host");
	want_refused(WH_MEMORY_VMM, &far, &good, "ends at this host");
	fabric_default();
}

static void fabric__no_manager(void **state)
{
	struct host host = good;

	(void)state;
	fabric_on();
	host.state = 1;
	want_refused(WH_MEMORY_VMM, &host, &good, "is the fabric manager running?");
	want_refused(WH_MEMORY_VMM, &good, &host, "is the fabric manager running?");
	host.state = 0;
	want_refused(WH_MEMORY_VMM, &host, &good, "belongs to no NVLink fabric");
	fabric_default();
}

/* The driver refuses: at the owner, which has no IMEX channel, when memory is created; here, when
 * it is imported, also because NVML and the driver disagree on the clique. */
static void fabric__driver_refuses(void **state)
{
	struct host far = good;

	(void)state;
	fabric_on();
	far.imex = 0;
	want_refused(WH_MEMORY_VMM, &good, &far, "NOT_PERMITTED");
	far.imex = 8;
	want_refused(WH_MEMORY_VMM, &good, &far, "cuMemImportFromShareableHandle");
	fake_fail("cuMemImportFromShareableHandle", 0, 800);
	want_refused(WH_MEMORY_VMM, &good, &good, "NOT_PERMITTED");
	fake_heal();
	far = good;
	far.fail = "cuMemExportToShareableHandle:0:800";
	want_refused(WH_MEMORY_VMM, &good, &far, "NOT_PERMITTED");
	fabric_default();
}

static void fabric__other_memory(void **state)
{
	(void)state;
	fabric_on();
	want_refused(WH_MEMORY_DEVICE, &good, &good, "memory of the kind vmm only");
	want_refused(CHILD_SEGMENTED, &good, &good, "was created without a fabric handle");
	fabric_default();
}

/* Publish another region of the child's memory, and write `length` bytes to it. */
static void want_region_refused(struct gpu_pair *p, uint64_t offset, uint64_t length,
				uint32_t access, uint32_t op, const char *word)
{
	int region = child_region(p->child, p->memory, offset, length, "other", access, NULL);
	struct wh_transfer transfer = { .local = p->region, .length = length, .op = op };
	struct wh_remote remote;
	struct wh_batch *batch;
	char text[4096];

	want(0, wh_peer_find(p->peer, "other", PATIENCE, &remote));
	transfer.remote = remote.id;
	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	want(0, gpu_run(batch));
	explain(batch, text);
	want_true(strstr(text, word), "no \"%s\" in:\n%s", word, text);
	want(0, wh_batch_free(batch));
	want(0, child_unregister(p->child, region));
}

/* A handle opens all of an allocation, for reading and writing. */
static void fabric__too_much(void **state)
{
	struct gpu_pair p;

	(void)state;
	fabric_on();
	hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &good);
	want_region_refused(&p, 0, LENGTH - 4096, ACCESS_BOTH, WH_WRITE, "the region is a part");
	want_region_refused(&p, 4096, LENGTH - 4096, ACCESS_BOTH, WH_READ, "the region is a part");
	want_region_refused(&p, 0, LENGTH, WH_ACCESS_READ, WH_READ, "may not do both");
	want_region_refused(&p, 0, LENGTH, WH_ACCESS_WRITE, WH_WRITE, "may not do both");
	gpu_pair_close(&p);
	fabric_default();
}

/* Handles go over TLS, unless the setting says otherwise, on either side. */
static void fabric__setting(void **state)
{
	struct host far = good;

	(void)state;
	want_refused(WH_MEMORY_VMM, &good, &good, "fabric handles go over TLS only");
	fabric_on();
	far.config[0] = "fabric=tls";
	want_refused(WH_MEMORY_VMM, &good, &far, "fabric handles go over TLS only");
	far.config[0] = "fabric=off";
	want_refused(WH_MEMORY_VMM, &good, &far, "the setting fabric is off");
	setenv("WHERRY_FABRIC", "off", 1);
	far.config[0] = "fabric=on";
	want_refused(WH_MEMORY_VMM, &good, &far, "the setting fabric is off");
	unsetenv("WHERRY_FABRIC");
	setenv("WHERRY_TLS", "1", 1);
	far.config[0] = "fabric=tls";
	for (int i = 0; i < 2; i++) {
		struct gpu_pair p;

		hosts_open(&p, WH_MEMORY_VMM, WH_MEMORY_VMM, &good, &far);
		exchange(&p, "cuda", ", NVLink domain");
		gpu_pair_close(&p);
	}
	fabric_default();
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(fabric__bytes, needs_fabric),
	TEST_NEEDS(fabric__segments, needs_fabric),
	TEST_NEEDS(fabric__blocks, needs_fabric),
	TEST_NEEDS(fabric__owner_killed, needs_fabric),
	TEST_NEEDS(fabric__initiator_killed, needs_fabric),
	TEST_NEEDS(fabric__unregistered, needs_fabric),
	TEST_NEEDS(fabric__own_unregistered, needs_fabric),
	TEST_NEEDS(fabric__reconnected, needs_fabric),
	TEST_NEEDS(fabric__reconnected_busy, needs_fabric),
	TEST_NEEDS(fabric__hostile_asks, needs_fabric),
	TEST_NEEDS(fabric__not_let_go, needs_fabric),
	TEST_NEEDS(fabric__other_domain, needs_fabric),
	TEST_NEEDS(fabric__no_manager, needs_fabric),
	TEST_NEEDS(fabric__driver_refuses, needs_fabric),
	TEST_NEEDS(fabric__other_memory, needs_fabric),
	TEST_NEEDS(fabric__too_much, needs_fabric),
	TEST_NEEDS(fabric__setting, needs_fabric),
};

/* The fake driver reads its environment once, and a library that is loaded already is found by its
 * name. */
static int prepare(void)
{
	const char *top = getenv("TMPDIR"), *nvml = getenv("TEST_NVML");
	FILE *boot;

	if (nvml && !dlopen(nvml, RTLD_NOW | RTLD_NODELETE))
		return -1;
	if (getenv("FAKE_CUDA_WORLD"))
		return 0; /* a child */
	snprintf(world, sizeof(world), "%.40s/fabric.XXXXXX", top && *top ? top : "/tmp");
	if (!mkdtemp(world))
		return -1;
	setenv("FAKE_CUDA_WORLD", world, 1);
	set_number("FAKE_CUDA_FABRIC", good.imex);
	snprintf(other_boot, sizeof(other_boot), "%s.boot", world);
	boot = fopen(other_boot, "we");
	if (!boot || fputs(CONTAINER_BOOT, boot) < 0 || fclose(boot))
		return -1;
	return 1;
}

static void clear(void)
{
	static const char *const names[] = { "here", "there", "boot" };
	char path[96];

	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s.%s", world, names[i]);
		unlink(path);
	}
	directory_remove(world); /* with what killed children have left */
}

int main(int argc, char **argv)
{
	int status, prepared = prepare();

	if (prepared < 0) {
		perror("gpu-fabric: preparing");
		return 1;
	}
	status = harness_main(argc, argv, "gpu-fabric", tests, sizeof(tests) / sizeof(*tests));
	if (prepared)
		clear();
	return status;
}
