// pad: copies rows of a tensor to the workspace, so that each begins at a multiple of 16 bytes and
// ends with zeros; or copies such rows back. Other kernels load and store whole pieces of 16 bytes.
//
// Threads: one per piece of 16 bytes of the copy, with a grid-stride loop.
//
// Bound by: instructions; it reads and writes each row once.
#include "common/memory.cuh"
#include "common/tensor.cuh"

// Macros: ELEMENT_BYTES, 2 or 4; ROW_ALIGN, the alignment of the tensor's rows, a power of two;
// BACK, 1 to copy back; see CHECK_ARGS.
static_assert(ROW_ALIGN >= ELEMENT_BYTES && ROW_ALIGN <= 16, "rows begin with an element");

struct Args {
    Strided tensor; // [image][row][head]
    char *copy;
    int rows, heads, bytes; // of an image; of a row; bytes of a tensor's row
    int row_pieces, pieces; // of 16 bytes: of a row of the copy, and of the whole copy
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(256) msda_pad(const __grid_constant__ Args args) {
    for (u32 index = blockIdx.x * 256 + threadIdx.x; index < args.pieces;
         index += gridDim.x * 256) {
        const u32 place = index / args.row_pieces, first = (index - place * args.row_pieces) * 16;
        const u32 row = place / args.heads, image = row / args.rows;
        char *at_row =
            args.tensor.at(image, row - image * args.rows, place - row * args.heads) + first;
        char *const copy = args.copy + i64(index) * 16;
        Vector<16> piece{};
        if (BACK) piece = ld_global<16>(copy);
#pragma unroll
        for (int at = 0; at < 16; at += ROW_ALIGN) {
            if (first + at >= args.bytes) break;
            const int shift = ROW_ALIGN < 4 ? at % 4 * 8 : 0;
            Vector<ROW_ALIGN> part;
            if (!BACK) part = ld_global<ROW_ALIGN>(at_row + at); // several share a sector
#pragma unroll
            for (int i = 0; i < Vector<ROW_ALIGN>::WORDS; i++) {
                if (BACK) {
                    part.word[i] = piece.word[at / 4 + i] >> shift;
                } else {
                    piece.word[at / 4 + i] |= part.word[i] << shift;
                }
            }
            if (BACK) st_global<ROW_ALIGN>(at_row + at, part);
        }
        if (!BACK) st_global<16>(copy, piece);
    }
}
