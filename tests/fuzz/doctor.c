/* SPDX-License-Identifier: Apache-2.0 */
/* The parsers of wherry doctor for text files of recorded machines. */
#include "../../tools/doctor/errno.c"
#include "../../tools/doctor/facts.c"
#include "../../tools/doctor/host.c"
#include "../../tools/doctor/link.c"
#include "../../tools/doctor/pci.c"
#include "../../tools/doctor/verbs.c"
#include "../../tools/output.c"
#include "../../tools/topo/text.c"

#include "fuzz.h"

void finding_add(struct finding *finding, enum verdict verdict, const char *format, ...)
{
	va_list list;

	finding->verdict = verdict;
	va_start(list, format);
	vsnprintf(finding->evidence, sizeof(finding->evidence), format, list);
	va_end(list);
}

void finding_add_absent(struct finding *finding, enum absent what)
{
	finding->absent = what;
	finding_add(finding, INFO, "absent");
}

void finding_advise(struct finding *finding, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(finding->fix, sizeof(finding->fix), format, list);
	va_end(list);
}

void doctor_move(struct verbs_fact *nic, double until, void (*each)(void *arg), void *arg)
{
	(void)nic;
	(void)until;
	(void)each;
	(void)arg;
}

void facts_windows(const struct wh_tree *tree, const char *gpu, struct window_facts *out)
{
	(void)tree;
	(void)gpu;
	out->count = 0;
}

int fail(int error, const char *format, ...)
{
	(void)format;
	return error;
}

int errno_parse(const char *text, const char **name)
{
	*name = text;
	return 0;
}

int usage_error(const char *format, ...)
{
	return !format;
}

int doctor_next_device(const struct doctor *doctor, size_t *at, char name[WH_NAME])
{
	(void)doctor;
	(void)at;
	*name = '\0';
	return -1;
}

void doctor_no_device(const struct doctor *doctor, struct finding *finding)
{
	(void)doctor;
	finding_add_absent(finding, ABSENT_PCI);
}

size_t doctor_gpus(const struct doctor *doctor)
{
	return doctor->topology != NULL;
}

size_t doctor_rdma(const struct doctor *doctor)
{
	return doctor->topology != NULL;
}

const char *screen_tint(const struct screen *screen, enum tint tint)
{
	(void)tint;
	return screen->color ? "<" : "";
}

const char *screen_plain(const struct screen *screen)
{
	return screen->color ? ">" : "";
}

/* The input is lines of all of these files at once. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cuda_facts *cuda = calloc(1, sizeof(*cuda));
	struct verbs_facts *verbs = calloc(1, sizeof(*verbs));
	struct finding finding = { .verdict = PASS };
	struct crypto_facts crypto = { 0 };
	struct link_fact links[2] = {
		{ .address = "0000:11:00.0",
		  .count = 1,
		  .links = { { .address = "0000:11:00.0" } } },
		{ .address = "0000:22:00.0" },
	};
	struct reading reading = { .facts = links, .count = 2 };
	char *text = malloc(size + 1), *copy, *next, *line;

	check(cuda && verbs && text);
	memcpy(text, data, size);
	text[size] = '\0';
	copy = strdup(text);
	for (next = copy; (line = strsep(&next, "\n"));) {
		cuda_read_line(line, cuda);
		verbs_read_line(line, verbs);
		crypto_read_line(line, &crypto);
		reading_line(line, &reading);
		check(cuda->count <= FACTS_GPUS && verbs->count <= FACTS_NICS);
		cpus_count(line);
		cpus_overlap(line, text);
		cpus_overlap("0-3,8", line);
	}
	for (int i = 0; i < verbs->count; i++)
		check(verbs->nics[i].gpu_count <= FACTS_GPUS);
	objects_limited(text, "/rdma.max", &finding);
	free(copy);
	free(text);
	free(verbs);
	free(cuda);
	return 0;
}
