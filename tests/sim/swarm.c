/* SPDX-License-Identifier: Apache-2.0 */
/* What the seed chooses: which features, sizes, limits and faults there are at all in this world.
 * A world with few of them, but much of each, finds what one with a little of everything does not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define LONG 20 /* times as long */
#define PLACES_MOST 6 /* more take long */
#define FOLDERS_MOST 4 /* likewise */

struct row {
	const char *name;
	int *value;
	int calm; /* where shrinking goes */
	bool heals; /* back to `calm` when all is healed */
	const int *choices;
	size_t count;
};

#define CHOICES(...) (const int[]){ __VA_ARGS__ }, sizeof((int[]){ __VA_ARGS__ }) / sizeof(int)
#define ROW(member, calm, ...)                                                                     \
	{                                                                                          \
#member, &sim_options.member, calm, false, CHOICES(__VA_ARGS__)                    \
	}
#define HEALS(member, ...)                                                                         \
	{                                                                                          \
#member, &sim_options.member, 0, true, CHOICES(__VA_ARGS__)                        \
	}

static const struct row rows[] = {
	ROW(hosts, 2, 1, 2, 2, 2, 3, 3, 4, 5),
	ROW(programs, 1, 1, 1, 2, 2, 3),
	ROW(transports, 1, 0, 1, 2, 2, 2),
	ROW(shared, 0, 0, 1, 2, 3),
	ROW(self, 0, 0, 0, 1),
	ROW(threads, 1, 0, 1, 1),
	ROW(ipv6, 0, 0, 0, 1),
	ROW(tls, 0, 0, 0, 0, 1),
	ROW(crc32c, 0, 0, 0, 1),
	ROW(connections, 1, 1, 2, 4, 4),
	ROW(timeout_ms, 1000, 200, 1000, 1000, 5000, 20000),
	ROW(idle_ms, 30000, 20, 300, 30000, 30000),
	ROW(slice, 65536, 1024, 4096, 65536, 1 << 20),
	ROW(inline_bytes, 1000, 0, 1000, 1 << 20),
	ROW(notifications, 1024, 1, 3, 1024),
	ROW(block, 64, 1, 8, 64, 1000, 5000, 5000, 40000, 200000),
	ROW(span_ms, 1000, 300, 700, 1000, 2000),
	ROW(patience_ms, 10, 1, 10, 100),
	ROW(queue, 0, 0, 1, 1, 1),
	ROW(queue_checks, 0, 0, 0, 0, 1),
	ROW(callback, 0, 0, 1),
	ROW(notes, 0, 0, 1, 1, 1),
	ROW(address, 0, 0, 1),
	ROW(lists, 0, 0, 1),
	ROW(empty, 0, 0, 0, 0, 0, 0, 0, 1),
	ROW(reregister, 0, 0, 1),
	ROW(helper, 0, 0, 0, 1),
	ROW(weights, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 5),
	ROW(publishers, 1, 1, 1, 2),
	ROW(weights_rows, 8, 8, 40, 200),
	ROW(weights_shape, 0, 0, 1, 2),
	ROW(piece, 0, 0, 512, 8192),
	ROW(folders, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
	ROW(mooncake, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3),
	ROW(registry, 0, 0, 0, 0, 0, 0, 0, 1, 2),
	ROW(lease_ms, 10000, 200, 1000, 10000),
	HEALS(registry_faults, 0, 0, 300, 1000),
	HEALS(cut, 0, 0, 1000, 5000),
	HEALS(reset, 0, 0, 200, 1000, 5000),
	HEALS(black, 0, 0, 1000, 5000),
	HEALS(stall, 0, 0, 1000, 5000),
	HEALS(crash, 0, 0, 2000, 5000),
	HEALS(power, 0, 0, 300, 1000),
	HEALS(restart, 0, 0, 2000, 5000),
	HEALS(short_descriptors, 0, 0, 0, 2000),
	HEALS(short_memory, 0, 0, 0, 2000),
	HEALS(slow, 0, 0, 2000),
	ROW(late, 0, 0, 0, 20, 200),
	ROW(preempt, 0, 0, 5, 50, 300),
	ROW(eintr, 0, 0, 10, 200),
	ROW(spurious, 0, 0, 20),
	ROW(short_read, 0, 0, 0, 100),
	ROW(short_write, 0, 0, 100),
	HEALS(accept_fails, 0, 0, 50),
	HEALS(connect_fails, 0, 0, 20, 100),
	HEALS(epoll_fails, 0, 0, 0, 20),
	ROW(files, 0, 0, 0, 0, 30, 100),
	ROW(disk_us, 0, 0, 100, 20000),
	HEALS(disk_fails, 0, 0, 10),
	HEALS(disk_full, 0, 0, 10),
	HEALS(disk_hangs, 0, 0, 1000),
	ROW(copy_pauses, 0, 0, 0, 50, 500),
	ROW(vm_refused, 0, 0, 0, 0, 20),
	ROW(old_kernel, 0, 0, 1),
	HEALS(malloc_fails, 100, 1000, 10000, 100000),
	HEALS(malloc_nth, 0, 0, 0, 30, 1000, 10000),
	ROW(latency_us, 50, 5, 50, 500, 20000),
	ROW(jitter_us, 1, 1, 100, 5000),
	ROW(mbit, 25000, 10, 1000, 25000),
	ROW(segment, 65536, 100, 1460, 16384, 65536),
	ROW(sndbuf, 4 << 20, 4608, 65536, 4 << 20),
	ROW(rcvbuf, 4 << 20, 4608, 65536, 4 << 20),
	HEALS(flip, 0, 0, 100, 3000),
	ROW(zero_window_kills, 0, 0, 1),
	ROW(rdma, 0, 0, 0, 0, 1, 2, 4),
	ROW(nic_connections, 1024, 1, 2, 1024, 1024),
	ROW(nic_answers, 1024, 1, 2, 1024, 1024),
	ROW(nic_region, 1 << 30, 4096, 65536, 1 << 30, 1 << 30),
	ROW(nic_mbit, 100000, 100, 10000, 100000),
	HEALS(nic_late, 0, 0, 5, 50),
	HEALS(nic_fails, 0, 0, 0, 20),
	HEALS(nic_errors, 0, 0, 20, 300),
	HEALS(nic_port, 0, 0, 300, 2000),
	HEALS(nic_black, 0, 0, 500, 3000),
	ROW(gpus, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2),
	ROW(gpu_regions, 50, 30, 60, 100),
	ROW(gpu_locals, 50, 0, 50, 100),
	ROW(gpu_us, 5, 1, 5, 50, 500),
	HEALS(gpu_late, 0, 0, 5, 50),
	HEALS(gpu_memory, 0, 0, 0, 20),
	HEALS(gpu_fails, 0, 0, 0, 50, 1000),
	HEALS(gpu_stalls, 0, 0, 300, 2000),
	ROW(gpu_apart, 0, 0, 0, 1),
	ROW(gpu_plain, 0, 0, 0, 1),
};

#define ROWS ((int)(sizeof(rows) / sizeof(*rows)))
_Static_assert(ROWS <= SWARM_MOST, "there is room for each option");

/* A number for a seed and a name: FNV-1a, then the finaliser of splitmix64. */
static uint64_t mixed(uint64_t seed, const char *name)
{
	uint64_t z = 14695981039346656037ull;

	for (const char *c = name; *c; c++)
		z = (z ^ (uint8_t)*c) * 1099511628211ull;
	z += seed * 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void swarm_choose(uint64_t seed, bool is_long)
{
	for (int i = 0; i < ROWS; i++)
		*rows[i].value = rows[i].choices[mixed(seed, rows[i].name) % rows[i].count];
	if (is_long)
		sim_options.span_ms *= LONG;
}

void swarm_agree(void)
{
	int places;

	if (sim_options.weights) {
		sim_options.programs = 1; /* each member is on a host of its own */
		sim_options.gpus = 0; /* not yet */
	} else if (sim_options.hosts == 1 && sim_options.programs == 1) {
		sim_options.programs = 2;
	}
	if (sim_options.weights || sim_options.rdma)
		sim_options.folders = 0;
	if (sim_options.weights || sim_options.rdma || sim_options.folders)
		sim_options.mooncake = 0;
	if (sim_options.mooncake) {
		sim_options.programs = 1; /* engines of a host would need ports of their own */
		sim_options.hosts += sim_options.hosts == 1;
		sim_options.files = sim_options.shared = 0;
		sim_options.flip = 0; /* Mooncake's protocol has no checksums */
	}
	if (sim_options.folders || sim_options.mooncake)
		sim_options.registry = 0;
	places = sim_options.folders ? FOLDERS_MOST : PLACES_MOST;
	while (sim_options.programs > 1 && sim_options.hosts * sim_options.programs > places)
		sim_options.programs--;
	if (!sim_options.threads && !sim_options.folders)
		sim_options.disk_hangs = 0;
	if (!sim_options.crc32c)
		sim_options.flip = 0;
	if (sim_options.tls)
		sim_options.rdma = 0; /* an engine with TLS refuses what does not encrypt */
	/* Not yet, with GPUs. */
	if (sim_options.rdma || sim_options.folders || sim_options.mooncake)
		sim_options.gpus = 0;
}

static const struct row *row_find(const char *text)
{
	size_t length = strcspn(text, "=");

	for (int i = 0; i < ROWS && text[length]; i++)
		if (strlen(rows[i].name) == length && !strncmp(rows[i].name, text, length))
			return &rows[i];
	return NULL;
}

bool swarm_set(const char *text)
{
	const struct row *row = row_find(text);

	if (row)
		*row->value = atoi(strchr(text, '=') + 1);
	return row;
}

void swarm_print(bool all)
{
	for (int i = 0; i < ROWS; i++)
		if (all || *rows[i].value != rows[i].calm)
			printf(" %s=%d", rows[i].name, *rows[i].value);
	printf("\n");
}

bool swarm_get(int index, char *out, size_t length)
{
	if (index >= ROWS)
		return false;
	snprintf(out, length, "%s=%d", rows[index].name, *rows[index].value);
	return true;
}

bool swarm_calm_of(const char *text, char *out, size_t length)
{
	const struct row *row = row_find(text);

	if (!row || atoi(strchr(text, '=') + 1) == row->calm)
		return false;
	snprintf(out, length, "%s=%d", row->name, row->calm);
	return true;
}

void swarm_calm_all(void)
{
	for (int i = 0; i < ROWS; i++)
		*rows[i].value = rows[i].calm;
}

void swarm_heal(void)
{
	for (int i = 0; i < ROWS; i++)
		if (rows[i].heals)
			*rows[i].value = rows[i].calm;
}
