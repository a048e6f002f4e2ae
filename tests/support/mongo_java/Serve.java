import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.Arrays;
import java.util.List;

/**
 * A second server for tests that speaks MongoDB's protocol: mongo-java-server, in memory.
 *
 * Each of its updates is atomic by itself, with many connections at once. It says that it is older
 * than current drivers accept, and understands what they send: so it says otherwise here.
 */
public class Serve {
    public static void main(String[] arguments) throws Exception {
        MemoryBackend backend = new MemoryBackend();
        backend.version(new MongoVersion() {
            @Override
            public int getWireVersion() {
                return 9;
            }

            @Override
            public List<Integer> getVersionArray() {
                return Arrays.asList(4, 4, 0, 0);
            }
        });
        new MongoServer(backend).bind("127.0.0.1", Integer.parseInt(arguments[0]));
        Thread.sleep(Long.MAX_VALUE);
    }
}
