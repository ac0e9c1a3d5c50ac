/* SPDX-License-Identifier: Apache-2.0 */
/* peer-containers.c: two engines in two containers of one machine: what they share, what not, and
 * what is said where they share nothing */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "lib/command.h"
#include "lib/container.h"
#include "lib/fixture.h"
#include "lib/network.h"

#define LENGTH (2 * MIB) /* a mapping of cuMemCreate */
#define AT "/run/wherry" /* where the settings look */

/* An owner on the right and an initiator on the left, each in a container. */
struct pair {
	struct container_cable cable;
	char volume[64];
	struct container right, left;
	struct child *owner, *initiator;
	int memory, region; /* the owner's, named "target" */
	int local, local_region; /* the initiator's */
	int peer;
};

static const char *missing_gpus(void)
{
	return getenv("TEST_CUDA") ? needs_containers.missing() :
				     "there is no CUDA driver to test with";
}

static const struct route needs_gpus = { .name = "GPUs", .missing = missing_gpus };

static struct child *start(struct pair *pair, const struct container *container,
			   const char *address, int network, const char *meet, uid_t user)
{
	char listen[32];
	struct child_options options = { .container = container,
					 .listen = listen,
					 .config = { SHARED_KEY, meet },
					 .user = user };
	struct child *child;

	snprintf(listen, sizeof(listen), "%s:0", address);
	network_enter(network);
	child = child_start(&options);
	network_enter(pair->cable.left);
	return child;
}

static struct pair pair_new(int namespaces)
{
	struct pair pair = { .right = { .namespaces = namespaces, .at = AT },
			     .left = { .namespaces = namespaces, .at = "/run/meet" } };

	return pair;
}

static void owner_start(struct pair *pair, const char *meet)
{
	pair->owner = start(pair, &pair->right, CONTAINER_RIGHT, pair->cable.right, meet, 0);
	pair->memory = -1;
}

/* The two have the volume at different places, so the setting names one of them. NULL: the default.
 */
static void pair_open_with(struct pair *pair, const char *owner_meets, const char *initiator_meets)
{
	container_cable_open(&pair->cable);
	directory_make(pair->volume);
	want(0, chmod(pair->volume, 0777));
	pair->right.volume = pair->left.volume = pair->volume;
	owner_start(pair, owner_meets);
	pair->initiator =
		start(pair, &pair->left, CONTAINER_LEFT, pair->cable.left, initiator_meets, 0);
	pair->local = child_memory(pair->initiator, WH_MEMORY_PAGEABLE, LENGTH);
	pair->local_region = child_region(pair->initiator, pair->local, 0, LENGTH, NULL, 0, NULL);
}

static void pair_open(struct pair *pair)
{
	char meet[96];

	snprintf(meet, sizeof(meet), "meet=%s",
		 pair->right.namespaces & CLONE_NEWNS ? "/run/meet" : pair->volume);
	pair_open_with(pair, NULL, meet);
}

static void pair_close(struct pair *pair)
{
	if (pair->initiator)
		child_exit(pair->initiator);
	if (pair->owner)
		child_exit(pair->owner);
	directory_remove(pair->volume);
	container_cable_close(&pair->cable);
}

static void owner_publish(struct pair *pair, uint32_t kind)
{
	pair->memory = child_memory(pair->owner, kind, LENGTH);
	pair->region =
		child_region(pair->owner, pair->memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
}

static void owner_withdraw(struct pair *pair)
{
	want(0, child_unregister(pair->owner, pair->region));
	want(0, child_free(pair->owner, pair->memory));
}

/* Write there and read back; the bytes must be right on both sides. */
static void exchange(struct pair *pair, const char *require, struct child_result *result)
{
	static uint64_t seed = 1;
	struct child_transfer transfer = { .peer = pair->peer,
					   .region = pair->local_region,
					   .remote = "target",
					   .op = WH_WRITE,
					   .length = LENGTH,
					   .require = require };

	seed++;
	child_fill(pair->initiator, pair->local, 0, LENGTH, 0, seed);
	want_true(!child_transfer(pair->initiator, &transfer, result), "%s", result->text);
	want_true(child_check(pair->owner, pair->memory, 0, LENGTH, 0, seed) == PATTERN_GOOD,
		  "other bytes");
	child_fill(pair->initiator, pair->local, 0, LENGTH, 0, 0);
	transfer.op = WH_READ;
	want_true(!child_transfer(pair->initiator, &transfer, result), "%s", result->text);
	want_true(child_check(pair->initiator, pair->local, 0, LENGTH, 0, seed) == PATTERN_GOOD,
		  "other bytes");
}

static void reach(struct pair *pair)
{
	char text[256];

	pair->peer = child_peer(pair->initiator, pair->owner->url, text);
	want_true(pair->peer >= 0, "%s", text);
}

static void want_word(const struct child_result *result, const char *word)
{
	want_true(strstr(result->explain, word), "no \"%s\" in:\n%s", word, result->explain);
}

/* With require=local it is an error to take the network. */
static void want_not_local(struct pair *pair)
{
	struct child_transfer transfer = { .peer = pair->peer,
					   .region = pair->local_region,
					   .remote = "target",
					   .op = WH_WRITE,
					   .length = LENGTH,
					   .require = "local" };
	struct child_result result;

	want(-EOPNOTSUPP, child_transfer(pair->initiator, &transfer, &result));
	want_true(strstr(result.text, "local is required, and no transport reaches ") &&
			  strstr(result.text, "shm: "),
		  "%s", result.text);
}

/* ---- what they share ----------------------------------------------------------------------------
 */

/* For every combination of the other namespaces, with different networks: shared memory is mapped;
 * private memory is copied where the initiator sees the owner's process, else goes by TCP, with the
 * reason and what to do. */
static void containers__share(void **state)
{
	static const int kinds[] = { CLONE_NEWPID, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWUTS };

	(void)state;
	for (unsigned set = 0; set < 16; set++) {
		struct child_result result;
		struct pair pair = pair_new(0);

		for (int i = 0; i < 4; i++)
			pair.right.namespaces |= set >> i & 1 ? kinds[i] : 0;
		/* A new PID namespace is nothing without its /proc. */
		if (pair.right.namespaces & CLONE_NEWPID)
			pair.right.namespaces |= CLONE_NEWNS;
		pair.left.namespaces = pair.right.namespaces;
		if (pair.right.namespaces & CLONE_NEWNS) {
			pair_open(&pair);
		} else { /* /dev/shm is there for both */
			pair.right.at = pair.left.at = NULL;
			pair_open_with(&pair, NULL, NULL);
		}
		reach(&pair);
		owner_publish(&pair, WH_MEMORY_SHARED);
		exchange(&pair, "local", &result);
		want_word(&result, "shm: ");
		want_word(&result, "mapped memfd");
		owner_withdraw(&pair);
		owner_publish(&pair, CHILD_FOREIGN);
		exchange(&pair, NULL, &result);
		if (pair.right.namespaces & CLONE_NEWPID) {
			assert_string_equal(result.transport, "tcp");
			want_word(&result, "another PID namespace: use wh_memory_alloc()");
			want_word(&result, " is on this host, but bytes go there by tcp: shm: ");
			want_not_local(&pair);
		} else if (!route_vm.missing || !route_vm.missing()) {
			assert_string_equal(result.transport, "shm");
			want_word(&result, "process_vm");
		}
		owner_withdraw(&pair);
		pair_close(&pair);
	}
}

/* A process outside sees those in containers, not the other way round. */
static void containers__outside(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL);
	struct child_result result;
	char meet[96];

	(void)state;
	pair.left = (struct container){ .namespaces = 0 };
	container_cable_open(&pair.cable);
	directory_make(pair.volume);
	pair.right.volume = pair.volume;
	owner_start(&pair, NULL);
	snprintf(meet, sizeof(meet), "meet=%s", pair.volume);
	pair.initiator = start(&pair, NULL, CONTAINER_LEFT, pair.cable.left, meet, 0);
	pair.local = child_memory(pair.initiator, WH_MEMORY_PAGEABLE, LENGTH);
	pair.local_region = child_region(pair.initiator, pair.local, 0, LENGTH, NULL, 0, NULL);
	reach(&pair);
	owner_publish(&pair, WH_MEMORY_SHARED);
	exchange(&pair, "shm", &result);
	owner_withdraw(&pair);
	if (!route_vm.missing || !route_vm.missing()) {
		owner_publish(&pair, CHILD_FOREIGN);
		exchange(&pair, "shm", &result);
		want_word(&result, "process_vm");
		owner_withdraw(&pair);
	}
	pair_close(&pair);
}

/* The initiator only looks: a read-only mount is enough. The owner cannot be met in one. */
static void containers__read_only(void **state)
{
	struct child_result result;

	(void)state;
	for (int owner = 0; owner < 2; owner++) {
		struct pair pair = pair_new(CONTAINER_ALL);

		*(owner ? &pair.right.read_only : &pair.left.read_only) = true;
		pair_open(&pair);
		reach(&pair);
		owner_publish(&pair, WH_MEMORY_SHARED);
		exchange(&pair, NULL, &result);
		assert_string_equal(result.transport, owner ? "tcp" : "shm");
		if (owner)
			want_word(&result, "is not in /run/meet here");
		pair_close(&pair);
	}
}

/* No room in /dev/shm: the next folder is taken, and memory is not there anyway. */
static void containers__full(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL);
	struct child_result result;

	(void)state;
	pair.right.full = pair.left.full = true;
	pair_open_with(&pair, "meet=/dev/shm," AT, "meet=/dev/shm,/run/meet");
	reach(&pair);
	owner_publish(&pair, WH_MEMORY_SHARED);
	exchange(&pair, "shm", &result);
	pair_close(&pair);
}

/* ---- GPU memory ---------------------------------------------------------------------------------
 */

/* Both kinds: cuMemAlloc, by a legacy handle, and cuMemCreate, by a descriptor. The fake driver
 * takes a legacy handle with its own process's number for its own, and two containers both have a
 * process 1, so the initiator is not in a PID namespace of its own for that kind. */
static void containers__gpu(void **state)
{
	static const uint32_t kinds[] = { WH_MEMORY_DEVICE, WH_MEMORY_VMM };
	char world[64];

	(void)state;
	directory_make(world);
	want(0, chmod(world, 0777));
	setenv("FAKE_CUDA_WORLD", world, 1);
	for (int i = 0; i < 3; i++) {
		struct pair pair = pair_new(CONTAINER_ALL);
		struct child_result result;

		if (i == 0)
			pair.left.namespaces &= ~CLONE_NEWPID;
		pair_open(&pair);
		reach(&pair);
		owner_publish(&pair, kinds[i % 2]);
		exchange(&pair, i < 2 ? "local" : NULL, &result);
		assert_string_equal(result.transport, i < 2 ? "cuda" : "tcp");
		if (i == 2)
			want_word(&result, "as if both had one PID: run one under an init");
		owner_withdraw(&pair);
		pair_close(&pair);
	}
	unsetenv("FAKE_CUDA_WORLD");
	directory_remove(world);
}

/* Memory that its maker shares over NVLink's fabric alone, which has no descriptor: by a fabric
 * handle. Where the driver allows the fabric, memory of the kind VMM can do both, and a descriptor
 * is taken. */
static void containers__gpu_fabric(void **state)
{
	static const uint32_t kinds[] = { CHILD_FABRIC, WH_MEMORY_VMM };
	char world[64];

	(void)state;
	directory_make(world);
	want(0, chmod(world, 0777));
	setenv("FAKE_CUDA_WORLD", world, 1);
	setenv("FAKE_CUDA_FABRIC", "1", 1);
	for (int i = 0; i < 2; i++) {
		struct pair pair = pair_new(CONTAINER_ALL);
		struct child_result result;

		pair_open(&pair);
		reach(&pair);
		owner_publish(&pair, kinds[i]);
		exchange(&pair, "local", &result);
		assert_string_equal(result.transport, "cuda");
		if (kinds[i] == CHILD_FABRIC) /* it cannot be freed */
			want(0, child_unregister(pair.owner, pair.region));
		else
			owner_withdraw(&pair);
		pair_close(&pair);
	}
	unsetenv("FAKE_CUDA_FABRIC");
	unsetenv("FAKE_CUDA_WORLD");
	directory_remove(world);
}

/* A GPU that the other container does not see is named by its UUID; a container without a /proc of
 * its own is told that the driver does not start there. Both go by TCP. */
static void containers__gpu_not_there(void **state)
{
	struct child_result result;

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pair pair = pair_new(CONTAINER_ALL);

		if (i == 0)
			setenv("CUDA_VISIBLE_DEVICES", "1", 1);
		else
			pair.left.old_proc = true;
		pair_open(&pair);
		unsetenv("CUDA_VISIBLE_DEVICES");
		if (i == 0) { /* the owner sees the first GPU, the initiator the second */
			child_exit(pair.owner);
			setenv("CUDA_VISIBLE_DEVICES", "0", 1);
			owner_start(&pair, NULL);
			unsetenv("CUDA_VISIBLE_DEVICES");
		}
		reach(&pair);
		owner_publish(&pair, WH_MEMORY_VMM);
		exchange(&pair, NULL, &result);
		assert_string_equal(result.transport, "tcp");
		want_word(&result,
			  i == 0 ? "cuda: refused: GPU-fa0b1c2d-3e4f-6071-8293-a4b5c6d7e8f9 is "
				   "not visible here" :
				   "it needs the /proc of its PID namespace");
		pair_close(&pair);
	}
}

/* ---- ends and restarts --------------------------------------------------------------------------
 */

static unsigned names_in(const struct pair *pair)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/wherry-0", pair->volume);
	return directory_count(path);
}

/* The owner is killed: the initiator's batch fails in time, and its successor of the same name
 * works and removes the dead one's name. The initiator is killed: the owner can take its region
 * back. */
static void containers__killed(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL);
	struct child_transfer transfer = { .remote = "target", .op = WH_WRITE, .length = LENGTH };
	struct child_result result;
	int64_t begin;

	(void)state;
	pair_open(&pair);
	reach(&pair);
	owner_publish(&pair, WH_MEMORY_SHARED);
	exchange(&pair, "shm", &result);
	want(2, names_in(&pair)); /* the initiator listens, too */
	kill(pair.owner->pid, SIGKILL);
	transfer.peer = pair.peer;
	transfer.region = pair.local_region;
	begin = quiet_now();
	while (!child_transfer(pair.initiator, &transfer, &result))
		want_true(quiet_now() - begin < PATIENCE, "it goes on");
	child_kill(pair.owner);
	want(2, names_in(&pair));
	owner_start(&pair, NULL);
	want(2, names_in(&pair));
	owner_publish(&pair, WH_MEMORY_SHARED);
	reach(&pair);
	exchange(&pair, "shm", &result);

	child_kill(pair.initiator);
	pair.initiator = NULL;
	begin = quiet_now();
	owner_withdraw(&pair);
	want_true(quiet_now() - begin < PATIENCE, "the owner waits for a dead initiator");
	pair_close(&pair);
}

/* An engine that closes leaves nothing behind. */
static void containers__closed(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL);
	char path[96];

	(void)state;
	pair_open(&pair);
	want(2, names_in(&pair));
	child_exit(pair.owner);
	pair.owner = NULL;
	want(1, names_in(&pair));
	child_exit(pair.initiator);
	pair.initiator = NULL;
	want(0, names_in(&pair));
	snprintf(path, sizeof(path), "%s/wherry-0", pair.volume);
	want(0, rmdir(path));
	pair_close(&pair);
}

/* ---- what cannot be met -------------------------------------------------------------------------
 */

/* By TCP, and why. */
static void want_apart(struct pair *pair, const char *why)
{
	struct child_transfer transfer = { .remote = "target", .op = WH_WRITE, .length = LENGTH };
	struct child_result result;

	reach(pair);
	owner_publish(pair, WH_MEMORY_SHARED);
	exchange(pair, NULL, &result);
	assert_string_equal(result.transport, "tcp");
	want_word(&result, why);
	transfer.peer = pair->peer;
	transfer.region = pair->local_region;
	transfer.require = "shm";
	want(-EOPNOTSUPP, child_transfer(pair->initiator, &transfer, &result));
	want_true(strstr(result.text, "shm is required and cannot be used: "), "%s", result.text);
	want_not_local(pair);
	owner_withdraw(pair);
}

/* No folder in common. */
static void containers__no_folder(void **state)
{
	static const struct {
		const char *owner, *initiator, *why;
	} rows[] = {
		/* the mounts are at different places, and nobody says so */
		{ "meet=" AT, "meet=" AT ",/dev/shm", "is not in /run/wherry, /dev/shm here" },
		{ "meet=off", "meet=/run/meet", "listens in no folder: mount one" },
		{ NULL, "meet=off", "the setting meet is off" },
		{ NULL, "meet=/run/nothing", "is not in /run/nothing here: mount one folder" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct pair pair = pair_new(CONTAINER_ALL);

		pair_open_with(&pair, rows[i].owner, rows[i].initiator);
		want_apart(&pair, rows[i].why);
		pair_close(&pair);
	}
}

/* The users of the initiator's user namespace are others: the directory is not its own, and where
 * it cannot tell, the kernel's word on the socket decides. */
static void containers__other_users(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL);

	(void)state;
	pair.left.namespaces |= CLONE_NEWUSER;
	pair_open(&pair);
	want_apart(&pair, "is of user 65534 and mode 0700, not of this user and 0700");
	pair_close(&pair);

	/* In one network, where both find the abstract socket. */
	pair = pair_new(CLONE_NEWUSER | CLONE_NEWNS);
	container_cable_open(&pair.cable);
	directory_make(pair.volume);
	pair.left.at = NULL;
	pair.owner = start(&pair, NULL, CONTAINER_LEFT, pair.cable.left, NULL, 0);
	pair.initiator = start(&pair, &pair.left, CONTAINER_LEFT, pair.cable.left, NULL, 0);
	pair.local = child_memory(pair.initiator, WH_MEMORY_PAGEABLE, LENGTH);
	pair.local_region = child_region(pair.initiator, pair.local, 0, LENGTH, NULL, 0, NULL);
	want_apart(&pair, "the peer is in a user namespace whose users have no number here");
	pair_close(&pair);
}

/* What squats in the owner's place is refused: a directory of another user, one that others may
 * use, a link, and a file or a link of the socket's name. */
static void containers__squatted(void **state)
{
	char path[96], other[96], command[512];

	(void)state;
	for (int i = 0; i < 6; i++) {
		struct pair pair = pair_new(CONTAINER_ALL);
		const char *why = "refused: ";

		pair_open(&pair);
		snprintf(path, sizeof(path), "%s/wherry-0", pair.volume);
		snprintf(other, sizeof(other), "%s/other", pair.volume);
		if (i == 0) {
			want(0, chown(path, 1, 1));
		} else if (i == 1) {
			want(0, chmod(path, 0770));
		} else if (i == 2) {
			want(0, rename(path, other));
			want(0, symlink("other", path));
			why = "wherry-0: ";
		} else {
			snprintf(command, sizeof(command),
				 "cd %s && for f in *; do mv $f $f.true && %s; done", path,
				 i == 3 ? "echo >$f" :
				 i == 4 ? "ln -s $f.true $f" :
					  "ln -s /etc/passwd $f");
			want(0, system(command));
			why = "refused: what has the peer's name is no socket of this user";
		}
		want_apart(&pair, why);
		child_kill(pair.initiator);
		child_kill(pair.owner);
		pair.initiator = pair.owner = NULL;
		snprintf(command, sizeof(command), "rm -rf %s", path);
		want(0, system(command));
		snprintf(command, sizeof(command), "rm -rf %s", other);
		want(0, system(command));
		pair_close(&pair);
	}
}

/* A third container with the same folder and the same user: with the key it is one more member,
 * without it gets nothing. */
static void containers__stranger(void **state)
{
	static const char other[] =
		"key="
		"0000000000000000000000000000000000000000000000000000000000000001";
	struct pair pair = pair_new(CONTAINER_ALL);
	struct child_result result;
	char text[256];

	(void)state;
	pair_open(&pair);
	reach(&pair);
	owner_publish(&pair, WH_MEMORY_SHARED);
	for (int member = 0; member < 2; member++) {
		struct child_options options = {
			.container = &pair.left,
			.listen = "none",
			.config = { member ? SHARED_KEY : other, "meet=/run/meet" },
		};
		struct child *third = child_start(&options);
		struct child_transfer transfer = {
			.remote = "target", .op = WH_READ, .length = LENGTH, .require = "shm"
		};

		transfer.peer = child_peer(third, pair.owner->url, text);
		if (member) {
			want_true(transfer.peer >= 0, "%s", text);
			transfer.region =
				child_region(third, child_memory(third, WH_MEMORY_PAGEABLE, LENGTH),
					     0, LENGTH, NULL, 0, NULL);
			want_true(!child_transfer(third, &transfer, &result), "%s", result.text);
		} else {
			want(-EACCES, transfer.peer);
		}
		child_exit(third);
	}
	exchange(&pair, "shm", &result);
	pair_close(&pair);
}

struct said {
	unsigned warnings;
	char text[512];
};

static void keep_warning(void *arg, const struct wh_log_record *record)
{
	struct said *said = arg;

	if (record->level != WH_LOG_WARN)
		return;
	said->warnings++;
	snprintf(said->text, sizeof(said->text), "%s", record->text);
}

/* Write to the owner's region from this process. Returns the status of submission. */
static int write_from_here(struct wh_engine *engine, const char *url, const char *require)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = require };
	unsigned char *page = pages_new(LENGTH);
	struct wh_transfer transfer = { .length = LENGTH, .op = WH_WRITE };
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_batch *batch;
	struct wh_peer *peer;
	int error;

	want(0, wh_peer_open(engine, url, NULL, &peer));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	want(0, wh_region_register(engine, page, LENGTH, NULL, &region));
	transfer.local = region;
	transfer.remote = remote.id;
	want(0, wh_batch_new(peer, &options, &batch));
	want(0, wh_batch_add(batch, &transfer, 1));
	error = wh_batch_submit(batch);
	if (!error) {
		want(0, wh_batch_wait_for(batch, PATIENCE));
		want(0, wh_batch_status(batch));
	}
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(region));
	pages_free(page, LENGTH);
	return error;
}

/* Two containers, and one line for both: it names what is missing. With require=local an error in
 * its place; a peer on another machine would not be concerned. */
static void containers__one_warning(void **state)
{
	struct pair pair = pair_new(CONTAINER_ALL), other = pair_new(CONTAINER_ALL);
	static const char *const config[] = { SHARED_KEY, "meet=/run/nothing", NULL };
	static const char *const local[] = { SHARED_KEY, "meet=/run/nothing", "require=local",
					     NULL };
	struct said said = { .warnings = 0 };
	struct wh_engine_options options = { .size = sizeof(options),
					     .listen = "none",
					     .config = config,
					     .log = keep_warning,
					     .log_arg = &said,
					     .log_level = WH_LOG_WARN };
	struct wh_engine *engine;

	(void)state;
	pair_open(&pair);
	other.cable = pair.cable;
	other.right.volume = pair.volume;
	owner_start(&other, NULL);
	owner_publish(&pair, WH_MEMORY_SHARED);
	owner_publish(&other, WH_MEMORY_SHARED);
	want(0, wh_engine_open(&options, &engine));
	for (int turn = 0; turn < 2; turn++) {
		want(0, write_from_here(engine, pair.owner->url, NULL));
		want(0, write_from_here(engine, other.owner->url, NULL));
	}
	want(1, said.warnings);
	want_true(strstr(said.text, "/run/nothing") && strstr(said.text, "mount one folder"), "%s",
		  said.text);
	want_text(-EOPNOTSUPP, "local is required",
		  write_from_here(engine, pair.owner->url, "local"));
	want(0, wh_engine_close(engine));
	options.config = local;
	want(0, wh_engine_open(&options, &engine));
	want_text(-EOPNOTSUPP, "shm: its socket is not in /run/nothing here",
		  write_from_here(engine, pair.owner->url, NULL));
	want(0, write_from_here(engine, pair.owner->url, "tcp"));
	want(0, wh_engine_close(engine));
	child_exit(other.owner);
	pair_close(&pair);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(containers__share, needs_containers),
	TEST_NEEDS(containers__outside, needs_containers),
	TEST_NEEDS(containers__read_only, needs_containers),
	TEST_NEEDS(containers__full, needs_containers),
	TEST_NEEDS(containers__gpu, needs_gpus),
	TEST_NEEDS(containers__gpu_fabric, needs_gpus),
	TEST_NEEDS(containers__gpu_not_there, needs_gpus),
	TEST_NEEDS(containers__killed, needs_containers),
	TEST_NEEDS(containers__closed, needs_containers),
	TEST_NEEDS(containers__no_folder, needs_containers),
	TEST_NEEDS(containers__one_warning, needs_containers),
	TEST_NEEDS(containers__other_users, needs_containers),
	TEST_NEEDS(containers__squatted, needs_containers),
	TEST_NEEDS(containers__stranger, needs_containers),
};

HARNESS_MAIN("peer-containers", tests)
