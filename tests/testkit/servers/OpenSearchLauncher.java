import java.io.File;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** Starts one node of OpenSearch whose home is the system property opensearch.path.home. */
public class OpenSearchLauncher extends Node {
    OpenSearchLauncher(Environment environment, List plugins) {
        super(environment, plugins, true);
    }

    public static void main(String[] arguments) throws Exception {
        Path home = new File(System.getProperty("opensearch.path.home")).toPath();
        LogConfigurator.registerErrorListener();
        LogConfigurator.setNodeName("flumeng");
        Supplier name = new Supplier() {
            public Object get() {
                return "flumeng";
            }
        };
        Map properties = new HashMap();
        Environment environment = InternalSettingsPreparer.prepareEnvironment(
            Settings.builder().put("path.home", home.toString()).build(), properties, home.resolve("config"), name);
        LogConfigurator.configure(environment);
        List plugins = new ArrayList();
        plugins.add(Netty4Plugin.class);
        new OpenSearchLauncher(environment, plugins).start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
