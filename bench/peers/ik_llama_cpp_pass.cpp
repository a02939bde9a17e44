// Times ik_llama.cpp for one pass over several numbers of rows, in the JSON of `foretoken bench pass --json`.
//
//     g++ -O2 -std=c++17 -I IK/include -I IK/ggml/include ik_llama_cpp_pass.cpp -o ik_pass \
//         -L IK/build/src -lllama -L IK/build/ggml/src -lggml -Wl,-rpath,IK/build/src:IK/build/ggml/src
//     ik_pass MODEL.gguf THREADS 1,8,64 REPEAT [repack]
//
// The passes are those of `llama_cpp_pass.py`: rows of one sequence after 64 cached ones, with the logits of every row.
// Numbers of rows alternate, each pass follows an untimed one of its kind, and times are medians. Settings are its own
// defaults (flash attention, fused products of experts); `repack` is its -rtr, which packs weights as they are loaded.
// It is a program in C++, since its structures differ from llama.cpp's and have no Python binding. The context is
// fixed.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

static const int CONTEXT_LEN = 64;

static void fail(const char *what) {
    std::fprintf(stderr, "error: %s\n", what);
    std::exit(1);
}

struct Timer {
    llama_model *model;
    llama_context *context;
    llama_batch batch;
    int vocabulary;

    Timer(const char *path, int threads, int rows_max, bool repack) {
        llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
        llama_backend_init();
        llama_model_params model_settings = llama_model_default_params();
        model_settings.repack_tensors = repack;
        model_settings.use_mmap = !repack;
        model = llama_model_load_from_file(path, model_settings);
        if (!model) fail("the model cannot be loaded");
        llama_context_params settings = llama_context_default_params();
        settings.n_ctx = 1024;
        settings.n_batch = settings.n_ubatch = std::max(512, rows_max);
        settings.n_threads = settings.n_threads_batch = threads;
        context = llama_init_from_model(model, settings);
        if (!context) fail("no context");
        batch = llama_batch_init(settings.n_batch, 0, 1);
        vocabulary = llama_n_vocab(model);
    }

    // Milliseconds of a pass of `rows` rows at `start`, the last `wanted` of them with logits.
    double decode(int start, int rows, int wanted) {
        batch.n_tokens = rows;
        for (int i = 0; i < rows; i++) {
            batch.token[i] = (start + i) * 7919 % vocabulary;
            batch.pos[i] = start + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = i >= rows - wanted;
        }
        auto began = std::chrono::steady_clock::now();
        if (llama_decode(context, batch) != 0) fail("llama_decode");
        llama_synchronize(context);
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    }

    double timed(int rows) {
        double ms = decode(CONTEXT_LEN, rows, rows);
        if (!llama_kv_cache_seq_rm(context, 0, CONTEXT_LEN, -1)) fail("the pass cannot be forgotten");
        return ms;
    }
};

int main(int count, char **words) {
    if (count < 5) fail("expected: MODEL.gguf THREADS ROWS,ROWS REPEAT [repack]");
    std::vector<int> rows;
    std::stringstream list(words[3]);
    for (std::string word; std::getline(list, word, ',');) rows.push_back(std::atoi(word.c_str()));
    int repeat = std::atoi(words[4]);
    bool repack = count > 5 && !std::strcmp(words[5], "repack");
    if (rows.empty() || *std::min_element(rows.begin(), rows.end()) < 1 || repeat < 1) fail("ROWS and REPEAT: from 1");
    Timer timer(words[1], std::atoi(words[2]), *std::max_element(rows.begin(), rows.end()), repack);
    timer.decode(0, CONTEXT_LEN, 1);
    std::vector<std::vector<double>> times(rows.size());
    for (int turn = 0; turn <= repeat; turn++) {
        for (size_t i = 0; i < rows.size(); i++) {
            timer.timed(rows[i]);
            if (turn > 0) times[i].push_back(timer.timed(rows[i]));
        }
    }
    std::printf("{\"model\": \"%s\", \"context\": %d, \"repack\": %s, \"ms_per_pass\": {", words[1], CONTEXT_LEN,
                repack ? "true" : "false");
    for (size_t i = 0; i < rows.size(); i++) {
        std::sort(times[i].begin(), times[i].end());
        std::printf("%s\"%d\": %.4f", i ? ", " : "", rows[i], times[i][times[i].size() / 2]);
    }
    std::printf("}}\n");
}
