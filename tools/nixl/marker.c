/* SPDX-License-Identifier: Apache-2.0 */
/* The note in the plug-in's file (compat/nixl/marker.c), looked for in a file that may be anything.
 */
#include <elf.h>
#include <errno.h>
#include <string.h>

#include "nixl/nixl.h"
#include "util/text.h"

/* Notes are aligned to 4 bytes. */
static uint64_t aligned(uint64_t length)
{
	return (length + 3) & ~UINT64_C(3);
}

/* Wherry's note among those of a segment. */
static int notes_find(const unsigned char *bytes, size_t length, char out[WH_NIXL_VERSION])
{
	while (length >= sizeof(Elf64_Nhdr)) {
		const unsigned char *name = bytes + sizeof(Elf64_Nhdr), *text;
		uint64_t size;
		Elf64_Nhdr note;

		memcpy(&note, bytes, sizeof(note));
		size = sizeof(note) + aligned(note.n_namesz) + aligned(note.n_descsz);
		if (size > length)
			return -ENOENT;
		text = name + aligned(note.n_namesz);
		if (note.n_type == WH_NIXL_MARKER_TYPE && note.n_namesz == sizeof(WH_NIXL_MARKER) &&
		    !memcmp(name, WH_NIXL_MARKER, sizeof(WH_NIXL_MARKER)) &&
		    note.n_descsz == WH_NIXL_VERSION && memchr(text, 0, WH_NIXL_VERSION) && *text &&
		    wh_text_is_clean((const char *)text, strlen((const char *)text))) {
			memcpy(out, text, WH_NIXL_VERSION);
			return 0;
		}
		bytes += size;
		length -= size;
	}
	return -ENOENT;
}

int nixl_marker_read(const unsigned char *bytes, size_t length, char out[WH_NIXL_VERSION])
{
	Elf64_Ehdr header;

	if (length < sizeof(header))
		return -ENOENT;
	memcpy(&header, bytes, sizeof(header));
	if (memcmp(header.e_ident, ELFMAG, SELFMAG) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
	    header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_DYN ||
	    header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > length ||
	    (length - header.e_phoff) / sizeof(Elf64_Phdr) < header.e_phnum)
		return -ENOENT;
	for (unsigned i = 0; i < header.e_phnum; i++) {
		Elf64_Phdr segment;

		memcpy(&segment, bytes + header.e_phoff + i * sizeof(segment), sizeof(segment));
		if (segment.p_type == PT_NOTE && segment.p_offset <= length &&
		    segment.p_filesz <= length - segment.p_offset &&
		    !notes_find(bytes + segment.p_offset, segment.p_filesz, out))
			return 0;
	}
	return -ENOENT;
}
