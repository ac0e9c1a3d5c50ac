/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over the files of a directory, without libFuzzer, so that what it once found
 * stays found. Each input is copied to a block of its own size: reading past its end is seen. */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
	struct stat status;
	uint8_t *data;
	FILE *file = fopen(path, "rb");
	size_t size, got;

	if (!file || fstat(fileno(file), &status) != 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		if (file)
			fclose(file);
		return -1;
	}
	size = (size_t)status.st_size;
	data = malloc(size ? size : 1);
	if (!data) {
		fprintf(stderr, "%s: %s\n", path, strerror(ENOMEM));
		fclose(file);
		return -1;
	}
	got = fread(data, 1, size, file);
	fclose(file);
	if (got == size)
		LLVMFuzzerTestOneInput(data, size);
	else
		fprintf(stderr, "%s: read %zu of %zu bytes\n", path, got, size);
	free(data);
	return got == size ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct dirent **names;
	int count, files = 0, failed = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
		return 64;
	}
	count = scandir(argv[1], &names, NULL, alphasort);
	if (count < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	for (int i = 0; i < count; i++) {
		char path[4096];

		if (names[i]->d_name[0] != '.') {
			snprintf(path, sizeof(path), "%s/%s", argv[1], names[i]->d_name);
			/* Named before it runs: after a crash this is the last line. */
			fprintf(stderr, "%s\n", path);
			failed += replay(path) != 0;
			files++;
		}
		free(names[i]);
	}
	free(names);
	/* The empty input is in every corpus. */
	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	if (files == 0) {
		fprintf(stderr, "%s: the corpus is empty\n", argv[1]);
		return 1;
	}
	printf("%d inputs\n", files);
	return failed ? 1 : 0;
}
