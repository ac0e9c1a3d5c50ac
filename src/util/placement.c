/* SPDX-License-Identifier: Apache-2.0 */
/* Moves busy loops to CPUs: see placement.h. */
#include "util/placement.h"

#include <sys/socket.h>

#include "util/clock.h"

/* Bytes between two looks, and how recent the last one of a busy loop is. A loop that moves less
 * does not need a CPU to itself. */
#define LOOK_BYTES ((uint64_t)32 << 20)
#define BUSY_TIME (50 * WH_MS)
/* Looks in a row that must agree where the other end is. Where the loops of the two engines do not
 * come in pairs, it is here and there in turns. */
#define STEADY 3
#define LOOPS_MOST 64 /* more loops than that are not placed */

int wh_placement_choose(const struct wh_placed *loops, unsigned count, unsigned self,
			const cpu_set_t *may)
{
	int cpus = CPU_COUNT(may), busy = 0, wanted = 0, best = -1, other = loops[self].other;
	int load[CPU_SETSIZE] = { 0 };

	for (unsigned i = 0; i < count; i++) {
		if (loops[i].cpu < 0 || loops[i].cpu >= CPU_SETSIZE)
			continue;
		busy++;
		load[loops[i].cpu]++;
		wanted += loops[i].other == other;
	}
	if (cpus < 2 || busy < cpus)
		return -1;
	/* Not if more loops would follow to that CPU than is its share: others would idle. */
	if (other >= 0 && other < CPU_SETSIZE && CPU_ISSET(other, may) &&
	    wanted <= (busy + cpus - 1) / cpus)
		return other == loops[self].cpu ? -1 : other;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, may) && (best < 0 || load[cpu] < load[best]))
			best = cpu;
	return load[loops[self].cpu] > load[best] + 1 ? best : -1;
}

/* Move the calling thread, and leave it free to be moved again. */
static void thread_move(int cpu, const cpu_set_t *may)
{
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET(cpu, &only);
	if (!sched_setaffinity(0, sizeof(only), &only))
		sched_setaffinity(0, sizeof(*may), may);
}

/* The CPU on which the other end has last sent something; -1: unknown. */
static int socket_other(int fd)
{
	socklen_t length = sizeof(int);
	int cpu = -1;

	return getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &length) ? -1 : cpu;
}

void wh_placement_moved(struct wh_place *places, unsigned count, unsigned self, uint64_t bytes,
			int fd, bool follow)
{
	struct wh_place *place = &places[self];
	struct wh_placed loops[LOOPS_MOST];
	int64_t now;
	cpu_set_t may;
	int other, to;

	place->moved += bytes;
	if (place->moved < LOOK_BYTES || count < 2 || count > LOOPS_MOST)
		return;
	place->moved = 0;
	now = wh_now();
	other = follow ? socket_other(fd) : -1;
	place->steady = other == atomic_load(&place->other) ? place->steady + 1 : 0;
	atomic_store(&place->other, other);
	atomic_store(&place->cpu, sched_getcpu());
	atomic_store(&place->seen, now);
	for (unsigned i = 0; i < count; i++)
		loops[i] = (struct wh_placed){
			now - atomic_load(&places[i].seen) < BUSY_TIME ?
				atomic_load(&places[i].cpu) :
				-1,
			atomic_load(&places[i].other),
		};
	if (place->steady < STEADY || loops[self].cpu < 0 ||
	    sched_getaffinity(0, sizeof(may), &may))
		return;
	to = wh_placement_choose(loops, count, self, &may);
	if (to < 0)
		return;
	/* First: another loop that looks meanwhile must not go to where this one goes. */
	atomic_store(&place->cpu, to);
	place->steady = 0;
	thread_move(to, &may);
}
